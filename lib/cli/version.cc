#include "lib/cli/version.h"

namespace torpor {

const char* Version() { return TORPOR_PACKAGE_VERSION; }

}  // namespace torpor
