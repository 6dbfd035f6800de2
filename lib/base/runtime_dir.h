#ifndef TORPOR_LIB_BASE_RUNTIME_DIR_H_
#define TORPOR_LIB_BASE_RUNTIME_DIR_H_

#include <string>

#include "lib/base/status.h"

namespace torpor {

// Where daemons and workers meet unless told otherwise: $TORPOR_RUNTIME_DIR, else /run/torpor for
// root, else $XDG_RUNTIME_DIR/torpor. FAILED_PRECONDITION NO_RUNTIME_DIR.
Result<std::string> DefaultRuntimeDir();

// Makes a folder, with mode 0755 whatever the umask is. One that exists stays as it is.
Status MakeFolder(const std::string& path);
// Likewise that of `file`, and all above it.
Status MakeFoldersOf(const std::string& file);

}  // namespace torpor

#endif  // TORPOR_LIB_BASE_RUNTIME_DIR_H_
