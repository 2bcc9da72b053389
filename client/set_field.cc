// SetField of job_file.h: one assignment onto a protobuf message, by reflection.

#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "client/job_file.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "proto/first_text_error.h"

namespace sparrow {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// "a.b[2].c" -> {"a", "b", "2", "c"}.
absl::StatusOr<std::vector<std::string>> SplitPath(absl::string_view path) {
  std::string dotted;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '[') {
      const size_t close = path.find(']', i);
      if (close == absl::string_view::npos) return absl::InvalidArgumentError("'[' without ']' in the path");
      absl::StrAppend(&dotted, ".", path.substr(i + 1, close - i - 1));
      i = close;
    } else {
      dotted.push_back(path[i]);
    }
  }
  std::vector<std::string> parts = absl::StrSplit(dotted, '.');
  for (const std::string& part : parts) {
    if (part.empty()) return absl::InvalidArgumentError("the path has an empty name; write path.to.field=value");
  }
  return parts;
}

std::vector<std::string> FieldNames(const Descriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return names;
}

absl::StatusOr<const FieldDescriptor*> FindField(const Descriptor* type, const std::string& name) {
  const FieldDescriptor* field = type->FindFieldByName(name);
  if (field != nullptr) return field;
  const std::vector<std::string> names = FieldNames(type);
  return absl::InvalidArgumentError(absl::StrCat(type->name(), " has no field \"", name, "\"", NearestHint(name, names),
                                                 "; its fields are ", absl::StrJoin(names, ", ")));
}

// Adds `value` to a list, or sets a single field to it, or element `index` of a list (-1: none). Same shape for all
// types.
struct Target {
  Message* message;
  const FieldDescriptor* field;
  int index;  // Of a list: which element; its size appends. -1: not a list.

  template <typename T, typename SetFn, typename SetAtFn, typename AddFn>
  void Put(T value, SetFn set, SetAtFn set_at, AddFn add) const {
    const Reflection* reflection = message->GetReflection();
    if (index < 0) {
      (reflection->*set)(message, field, std::move(value));
    } else if (index == reflection->FieldSize(*message, field)) {
      (reflection->*add)(message, field, std::move(value));
    } else {
      (reflection->*set_at)(message, field, index, std::move(value));
    }
  }
};

absl::Status WrongValue(absl::string_view value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not ", expected));
}

template <typename Int>
absl::StatusOr<Int> ParseInteger(absl::string_view text) {
  Int value = 0;
  if (absl::SimpleAtoi(text, &value)) return value;
  return WrongValue(
      text, absl::StrCat("an integer from ", std::numeric_limits<Int>::min(), " to ", std::numeric_limits<Int>::max()));
}

// A string as in a job file, but for the quotes, which may be left out: \t is a tab.
absl::StatusOr<std::string> Unescaped(absl::string_view text) {
  absl::string_view inner = text;
  if (inner.size() >= 2 && inner.front() == '"' && inner.back() == '"') inner = inner.substr(1, inner.size() - 2);
  std::string value, error;
  if (absl::CUnescape(inner, &value, &error)) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\": ", error, "; write \\t for a tab and \\\\ for a backslash"));
}

absl::Status PutScalar(absl::string_view text, const Target& target) {
  switch (target.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32: {
      ASSIGN_OR_RETURN(const uint32_t value, ParseInteger<uint32_t>(text));
      target.Put(value, &Reflection::SetUInt32, &Reflection::SetRepeatedUInt32, &Reflection::AddUInt32);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      ASSIGN_OR_RETURN(const uint64_t value, ParseInteger<uint64_t>(text));
      target.Put(value, &Reflection::SetUInt64, &Reflection::SetRepeatedUInt64, &Reflection::AddUInt64);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT32: {
      ASSIGN_OR_RETURN(const int32_t value, ParseInteger<int32_t>(text));
      target.Put(value, &Reflection::SetInt32, &Reflection::SetRepeatedInt32, &Reflection::AddInt32);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      ASSIGN_OR_RETURN(const int64_t value, ParseInteger<int64_t>(text));
      target.Put(value, &Reflection::SetInt64, &Reflection::SetRepeatedInt64, &Reflection::AddInt64);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) return WrongValue(text, "a finite number");
      if (target.field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        target.Put(value, &Reflection::SetDouble, &Reflection::SetRepeatedDouble, &Reflection::AddDouble);
      } else {
        target.Put(static_cast<float>(value), &Reflection::SetFloat, &Reflection::SetRepeatedFloat,
                   &Reflection::AddFloat);
      }
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      if (text != "true" && text != "false") return WrongValue(text, "true or false");
      target.Put(text == "true", &Reflection::SetBool, &Reflection::SetRepeatedBool, &Reflection::AddBool);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumDescriptor* type = target.field->enum_type();
      const EnumValueDescriptor* value = type->FindValueByName(std::string(text));
      if (value == nullptr) {
        std::vector<std::string> names;
        for (int i = 0; i < type->value_count(); ++i) names.push_back(type->value(i)->name());
        return WrongValue(text, absl::StrCat("one of ", absl::StrJoin(names, ", ")));
      }
      target.Put(value, &Reflection::SetEnum, &Reflection::SetRepeatedEnum, &Reflection::AddEnum);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      ASSIGN_OR_RETURN(std::string value, Unescaped(text));
      target.Put(std::move(value), &Reflection::SetString, &Reflection::SetRepeatedString, &Reflection::AddString);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return absl::InternalError("not a scalar");
}

// The message that `target` is, made if need be.
Message* MutableTarget(const Target& target) {
  const Reflection* reflection = target.message->GetReflection();
  if (target.index < 0) return reflection->MutableMessage(target.message, target.field);
  if (target.index == reflection->FieldSize(*target.message, target.field)) {
    return reflection->AddMessage(target.message, target.field);
  }
  return reflection->MutableRepeatedMessage(target.message, target.field, target.index);
}

absl::Status PutMessage(absl::string_view text, const Target& target) {
  Message* message = MutableTarget(target);
  message->Clear();
  FirstTextError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (parser.ParseFromString(std::string(text), message)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(error.message(), "; ", target.field->name(), " is a ",
                                                 message->GetDescriptor()->name(), ": name one of its fields (",
                                                 absl::StrJoin(FieldNames(message->GetDescriptor()), ", "),
                                                 "), or write it as text"));
}

absl::Status PutValue(absl::string_view text, const Target& target) {
  return target.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ? PutMessage(text, target)
                                                                      : PutScalar(text, target);
}

// Replaces a whole list: numbers separated by commas; one string.
absl::Status PutList(absl::string_view text, Message* message, const FieldDescriptor* field) {
  const Reflection* reflection = message->GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return absl::InvalidArgumentError(absl::StrCat(field->name(), " is a list of ",
                                                   reflection->FieldSize(*message, field), "; name an element, as in ",
                                                   field->name(), "[0], or append one with +="));
  }
  reflection->ClearField(message, field);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return PutScalar(text, {message, field, 0});
  int index = 0;
  for (absl::string_view element : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    RETURN_IF_ERROR(PutScalar(absl::StripAsciiWhitespace(element), {message, field, index++}));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ParseIndex(const std::string& text, const Message& message, const FieldDescriptor* field) {
  const int size = message.GetReflection()->FieldSize(message, field);
  int index = -1;
  if (absl::SimpleAtoi(text, &index) && index >= 0 && index <= size) return index;
  return absl::InvalidArgumentError(absl::StrCat(field->name(), " is a list of ", size, "; its index is 0 to ", size,
                                                 " (", size, " appends), not \"", text, "\""));
}

}  // namespace

absl::Status SetField(absl::string_view assignment, Message* message) {
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError("no '='; write path.to.field=value, such as train.batch_size=512");
  }
  absl::string_view path = assignment.substr(0, equals);
  const absl::string_view value = assignment.substr(equals + 1);
  const bool append = absl::ConsumeSuffix(&path, "+");
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));

  for (size_t i = 0; i < parts.size(); ++i) {
    ASSIGN_OR_RETURN(const FieldDescriptor* field, FindField(message->GetDescriptor(), parts[i]));
    Target target{message, field, -1};
    if (field->is_repeated()) {
      if (i + 1 == parts.size()) {
        if (!append) return PutList(value, message, field);
        target.index = message->GetReflection()->FieldSize(*message, field);
        return PutValue(value, target);
      }
      ASSIGN_OR_RETURN(target.index, ParseIndex(parts[++i], *message, field));
    }
    if (i + 1 == parts.size()) {
      if (append) {
        return absl::InvalidArgumentError(absl::StrCat("+= appends to a list, but ", field->name(), " is not one"));
      }
      return PutValue(value, target);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return absl::InvalidArgumentError(
          absl::StrCat(field->name(), " is a plain value and has no field \"", parts[i + 1], "\""));
    }
    message = MutableTarget(target);
  }
  return absl::OkStatus();
}

}  // namespace sparrow
