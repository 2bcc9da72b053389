#ifndef SPARROW_BASE_OPTIONS_H_
#define SPARROW_BASE_OPTIONS_H_

// Command-line options, each declared once: a table row gives the flag, the field it sets, its bounds and its help. The
// table does parsing, --help and the start-up print. Flags are written --name=value or --name value; a bool flag may
// stand alone. '-' and '_' are the same in names; we write '-'.

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/address.h"

namespace sparrow {

// Bounds of an integer flag, both inclusive.
struct IntFlag {
  int64_t* value;
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};
// Bounds of a number, both inclusive; it is finite.
struct NumberFlag {
  double* value;
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};
// A byte count with a unit (base/bytes.h), and the least that is accepted.
struct BytesFlag {
  uint64_t* value;
  uint64_t min = 0;
};
// HOST:PORT (base/address.h). Empty is refused unless it says "none".
struct AddressFlag {
  std::string* value;
  AddressUse use;
  bool may_be_empty = false;
};
struct Option {
  std::string name;  // Without dashes.
  std::variant<std::string*, std::vector<std::string>*, bool*, IntFlag, NumberFlag, BytesFlag, AddressFlag>
      target;  // A vector collects repeats.
  std::string help;
  bool required = false;
};

// What one program (or subcommand) takes.
struct Usage {
  std::string program;     // "sparrow-server"
  std::string positional;  // "JOB", shown in --help; "" if none.
  std::string summary;     // What it does, in a sentence or two.
  std::string examples;    // Printed last.
};

struct ParsedArguments {
  std::vector<std::string> positional;
  bool help = false;  // --help was given: print HelpText and exit 0. Required flags are not checked then.
};

// Sets the options' targets from `arguments` (without the program's name). InvalidArgument names the flag, its value
// and its bounds; an unknown flag names the nearest known one. `--` ends flags.
absl::StatusOr<ParsedArguments> ParseArguments(const std::vector<std::string>& arguments,
                                               const std::vector<Option>& options);

// The page for --help, with the current values as defaults.
std::string HelpText(const Usage& usage, const std::vector<Option>& options);

// "--listen=0.0.0.0:7000 --memory=4294967296 ...": for one line in the log at start.
std::string FormatOptions(const std::vector<Option>& options);

}  // namespace sparrow

#endif  // SPARROW_BASE_OPTIONS_H_
