#include "tests/fuzz/fill.h"

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <limits>

namespace torpor::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kDeepest = 4;

void FillAt(Input& input, const std::vector<std::string>& names, Message& message, int depth);

int64_t Number(Input& input) {
  static const std::vector<int64_t> few = {0, 1, 2, 3, -1, 4096, 8192, 65536, 1 << 20};
  switch (input.Below(6)) {
    case 0:
      return static_cast<int64_t>(input.Word());
    case 1:
      return input.OneIn(2) ? std::numeric_limits<int64_t>::max()
                            : std::numeric_limits<int64_t>::min();
    case 2:
      return static_cast<int64_t>(input.Byte()) * 4096;
    case 3:
      return input.Byte();
    default:
      return input.Of(few);
  }
}

std::string Text(Input& input, const std::vector<std::string>& names) {
  switch (input.Below(8)) {
    case 0:
      return "";
    case 1:
      return std::string(input.Byte() * size_t{3}, 'x');
    case 2: {
      // Valid UTF-8: anything else does not leave the client.
      std::string text = input.String(input.Below(24));
      for (char& c : text) c = static_cast<char>(c & 0x7f);
      return text;
    }
    default:
      return input.Of(names);
  }
}

// `index` below 0: the field is not repeated.
template <typename Value>
void Put(Message& message, const FieldDescriptor* field, Value value,
         void (Reflection::*set)(Message*, const FieldDescriptor*, Value) const,
         void (Reflection::*add)(Message*, const FieldDescriptor*, Value) const) {
  (message.GetReflection()->*(field->is_repeated() ? add : set))(&message, field, value);
}

void PutOne(Input& input, const std::vector<std::string>& names, Message& message,
            const FieldDescriptor* field, int depth) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return Put(message, field, static_cast<int32_t>(Number(input)), &Reflection::SetInt32,
                 &Reflection::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return Put(message, field, Number(input), &Reflection::SetInt64, &Reflection::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return Put(message, field, static_cast<uint32_t>(Number(input)), &Reflection::SetUInt32,
                 &Reflection::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Put(message, field, static_cast<uint64_t>(Number(input)), &Reflection::SetUInt64,
                 &Reflection::AddUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Put(message, field, static_cast<double>(Number(input)), &Reflection::SetDouble,
                 &Reflection::AddDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Put(message, field, static_cast<float>(Number(input)), &Reflection::SetFloat,
                 &Reflection::AddFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return Put(message, field, input.OneIn(2), &Reflection::SetBool, &Reflection::AddBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Put(message, field, static_cast<int>(input.Below(8)), &Reflection::SetEnumValue,
                 &Reflection::AddEnumValue);
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = Text(input, names);
      if (field->is_repeated()) return reflection->AddString(&message, field, text);
      return reflection->SetString(&message, field, text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return FillAt(input, names,
                    field->is_repeated() ? *reflection->AddMessage(&message, field)
                                         : *reflection->MutableMessage(&message, field),
                    depth + 1);
  }
}

void FillAt(Input& input, const std::vector<std::string>& names, Message& message, int depth) {
  if (depth > kDeepest) return;
  const google::protobuf::Descriptor* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const uint8_t choice = input.Byte();
    if (choice % 4 == 0) continue;
    const FieldDescriptor* field = type->field(i);
    const int count = field->is_repeated() ? choice / 4 % 4 : 1;
    for (int j = 0; j < count; ++j) PutOne(input, names, message, field, depth);
  }
}

}  // namespace

void Fill(Input& input, const std::vector<std::string>& names, Message& message) {
  FillAt(input, names, message, 0);
}

}  // namespace torpor::fuzz
