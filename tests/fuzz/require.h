#ifndef TORPOR_TESTS_FUZZ_REQUIRE_H_
#define TORPOR_TESTS_FUZZ_REQUIRE_H_

#include <cstdio>
#include <cstdlib>

// Ends the process, which is how a fuzz target reports.
#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

#endif  // TORPOR_TESTS_FUZZ_REQUIRE_H_
