#ifndef SPARROW_PROTO_FIRST_TEXT_ERROR_H_
#define SPARROW_PROTO_FIRST_TEXT_ERROR_H_

// For protobuf's parsers of text: keeps the first error, since later ones are mostly its consequences, and keeps all of
// them off stderr, where protobuf writes them if nobody collects them.

#include <google/protobuf/io/tokenizer.h>

#include <string>

namespace sparrow {

class FirstTextError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (!message_.empty()) return;
    line_ = line;
    column_ = column;
    message_ = message;
    if (!message_.empty() && message_.back() == '.') message_.pop_back();
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    AddError(line, column, message);
  }

  int line() const { return line_; }                       // From 0; -1: of the whole text.
  int column() const { return column_; }                   // From 0.
  const std::string& message() const { return message_; }  // Without a full stop. Empty: no error.

 private:
  int line_ = -1;
  int column_ = 0;
  std::string message_;
};

}  // namespace sparrow

#endif  // SPARROW_PROTO_FIRST_TEXT_ERROR_H_
