#ifndef TORPOR_LIB_CLI_VERSION_H_
#define TORPOR_LIB_CLI_VERSION_H_

namespace torpor {

// "1.2.3"
const char* Version();

}  // namespace torpor

#endif  // TORPOR_LIB_CLI_VERSION_H_
