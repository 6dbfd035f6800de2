// libcrypto keeps a state of errors for each thread, also of those of gRPC that live until the end.
extern "C" const char* __lsan_default_suppressions();  // NOLINT: the sanitizer's name for it

extern "C" const char* __lsan_default_suppressions() { return "leak:CRYPTO_zalloc\n"; }
