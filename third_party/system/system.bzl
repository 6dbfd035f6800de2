"""The distribution's libraries as Bazel targets.

`@system//:<name>` carries link flags only: the headers lie in /usr/include,
which every compiler searches anyway (naming it breaks #include_next).

`@system//:static_libs` is a folder of links to the static archives of all
these libraries and of libstdc++. With that folder first on the search path
(STATIC_LINKOPTS in //third_party/bazel:defs.bzl) the same -l flags link
statically, while libc and libm, which it lacks, stay dynamic.
"""

# Target: (pkg-config packages, flags that go first).
# grpcpp_channelz has no .pc file.
_LIBRARIES = {
    "absl": (
        [
            "absl_base",
            "absl_bind_front",
            "absl_cleanup",
            "absl_core_headers",
            "absl_flags",
            "absl_flags_parse",
            "absl_flags_usage",
            "absl_flat_hash_map",
            "absl_flat_hash_set",
            "absl_inlined_vector",
            "absl_optional",
            "absl_span",
            "absl_status",
            "absl_statusor",
            "absl_str_format",
            "absl_strings",
            "absl_synchronization",
            "absl_time",
        ],
        [],
    ),
    "benchmark": (["benchmark"], []),
    "fmt": ([], []),
    "gmock": (["gmock"], []),
    "gtest": (["gtest"], []),
    "gtest_main": (["gtest_main"], []),
    "grpcpp": (["grpc++", "protobuf"], []),
    "grpcpp_channelz": (["grpc++", "protobuf"], ["-lgrpcpp_channelz"]),
    "libevent_http": (["libevent_extra", "libevent_core"], []),
    "nlohmann_json": ([], []),
    "openssl": (["openssl"], []),
    "protobuf": (["protobuf"], []),
    "zlib": (["zlib"], []),
}

_TARGET = """
cc_library(
    name = "{name}",
    linkopts = {linkopts},
)
"""

_BUILD_HEAD = """
package(default_visibility = ["//visibility:public"])

filegroup(
    name = "static_libs",
    srcs = glob(["static/*.a"]),
)

filegroup(
    name = "health_proto",
    srcs = ["grpc-proto/grpc/health/v1/health.proto"],
)

filegroup(
    name = "reflection_v1_proto",
    srcs = ["grpc-proto/grpc/reflection/v1/reflection.proto"],
)

filegroup(
    name = "reflection_v1alpha_proto",
    srcs = ["grpc-proto/grpc/reflection/v1alpha/reflection.proto"],
)
"""

# Part of libc, or only meaningful dynamic.
_NEVER_STATIC = ["c", "dl", "m", "pthread", "rt"]

def _run(ctx, args):
    result = ctx.execute(args)
    if result.return_code != 0:
        fail("%s: %s%s(deploy/setup.sh installs what the build needs)" %
             (" ".join(args), result.stdout, result.stderr))
    return result.stdout.strip()

def _link_flags(ctx, packages):
    if not packages:
        return []

    # abseil's flags contain push-state and pop-state: keep order and repeats.
    return [
        flag
        for flag in _run(ctx, ["pkg-config", "--libs"] + packages).split(" ")
        if flag and not flag.startswith("-L")
    ]

def _system_libraries_impl(ctx):
    build = _BUILD_HEAD
    names = {"stdc++": True}
    for name, (packages, first) in _LIBRARIES.items():
        flags = first + _link_flags(ctx, packages)
        build += _TARGET.format(name = name, linkopts = repr(flags))
        for flag in flags:
            if flag.startswith("-l") and flag[2:] not in _NEVER_STATIC:
                names[flag[2:]] = True

    script = 'for l in "$@"; do gcc -print-file-name="lib$l.a"; done'
    archives = _run(ctx, ["bash", "-c", script, "bash"] + names.keys())
    for archive in archives.split("\n"):
        if archive.startswith("/"):
            ctx.symlink(archive, "static/" + archive.split("/")[-1])
    ctx.symlink("/usr/share/grpc-proto", "grpc-proto")
    ctx.file("BUILD.bazel", build)

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    configure = True,
    local = True,
)

_CUDA_BUILD = """
cc_library(
    name = "cuda",
    hdrs = ["include/cuda.h", "include/cudaTypedefs.h"],
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _cuda_headers_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "")
    if home:
        include = ctx.path(home + "/include")
    else:
        root = ctx.path(Label("@torpor//:WORKSPACE")).dirname
        include = root.get_child(".deps").get_child("cuda").get_child("include")
    for header in ["cuda.h", "cudaTypedefs.h"]:
        if not include.get_child(header).exists:
            fail("no %s in %s: set CUDA_HOME or run deploy/setup.sh" % (header, include))
        ctx.symlink(include.get_child(header), "include/" + header)
    ctx.file("BUILD.bazel", _CUDA_BUILD)

cuda_headers = repository_rule(
    implementation = _cuda_headers_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
