// In place of the one that the project's CMake generates: linked statically, nothing is exported.
#pragma once

#define PROMETHEUS_CPP_CORE_EXPORT
