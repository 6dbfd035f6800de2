"""Tests of the Python package, against real daemons on the host driver."""

def package_test(name, main, data = [], **kwargs):
    """Runs `main`, a unittest program that ends with fixture.main(), with the built package.

    The wheel is unpacked for it; see fixture.py for what it finds.

    Args:
      name: the test.
      main: the program.
      data: what else it reads; Python modules beside it may be imported.
      **kwargs: passed to sh_test.
    """
    programs = [
        "//client/ctl:torporctl",
        "//client/python:wheel",
        "//daemon:torpord",
    ]

    # Local: they take Python and the model from .deps, which Bazel does not know.
    native.sh_test(
        name = name,
        srcs = ["package_test.sh"],
        args = ["$(location %s)" % main] + ["$(location %s)" % program for program in programs],
        data = [
            main,
            "fixture.py",
            "//tests/gpu:torpor_daemon.py",
        ] + programs + data,
        size = kwargs.pop("size", "medium"),
        tags = kwargs.pop("tags", []) + [
            "local",
            "no_sanitizer",
        ],
        **kwargs
    )
