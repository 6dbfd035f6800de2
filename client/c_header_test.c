#include <stdio.h>
#include <string.h>

#include "client/torpor.h"

#define CHECK(condition)                                         \
  do {                                                           \
    if (!(condition)) {                                          \
      fprintf(stderr, "%d: not so: %s\n", __LINE__, #condition); \
      return 1;                                                  \
    }                                                            \
  } while (0)

int main(void) {
  torpor_options options = TORPOR_OPTIONS_INIT;
  torpor_session* session = (torpor_session*)&options;
  void* address = &options;

  CHECK(strcmp(torpor_version(), "0.1.0") == 0);
  CHECK(torpor_error_code(torpor_last_error()) == TORPOR_OK);

  options.socket_path = "/nonexistent/torpor.sock";
  options.driver = "host";
  CHECK(torpor_connect(&options, &session) == TORPOR_UNAVAILABLE);
  CHECK(session == NULL);
  CHECK(strcmp(torpor_error_reason(torpor_last_error()), "DAEMON_NOT_RUNNING") == 0);
  CHECK(strcmp(torpor_error_detail(torpor_last_error(), "path"), options.socket_path) == 0);

  CHECK(torpor_allocate(NULL, "weights", 1, &address) == TORPOR_INVALID_ARGUMENT);
  CHECK(address == NULL);
  CHECK(torpor_free(NULL, NULL) == TORPOR_OK);
  CHECK(torpor_close(NULL) == TORPOR_OK);
  CHECK(torpor_torch_malloc(0, 0, NULL) == NULL);
  torpor_torch_free(NULL, 0, 0, NULL);
  return 0;
}
