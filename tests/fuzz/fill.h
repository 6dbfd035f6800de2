#ifndef TORPOR_TESTS_FUZZ_FILL_H_
#define TORPOR_TESTS_FUZZ_FILL_H_

#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "tests/fuzz/input.h"

namespace torpor::fuzz {

// Sets fields of `message`, whatever its type, by the input: numbers near what is meant and far
// from it, enumerations with and without a name, strings mostly out of `names`.
void Fill(Input& input, const std::vector<std::string>& names, google::protobuf::Message& message);

}  // namespace torpor::fuzz

#endif  // TORPOR_TESTS_FUZZ_FILL_H_
