"""fuzz_target: a libFuzzer target whose corpus is a test, too."""

def fuzz_target(name, srcs, deps, corpus, size = "small", test_tags = []):
    """Declares <name>, for --config=fuzz only, and <name>_corpus_test, for any compiler.

    Args:
      name: the fuzzer.
      srcs: has LLVMFuzzerTestOneInput.
      deps: as usual.
      corpus: a folder of this package.
      size: of the test.
      test_tags: of the test.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps,
    )
    native.cc_test(
        name = name + "_corpus_test",
        size = size,
        srcs = srcs + ["replay.cc"],
        args = [native.package_name() + "/" + corpus],
        data = native.glob([corpus + "/*"]),
        tags = test_tags,
        deps = deps,
    )
