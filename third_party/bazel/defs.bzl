"""Macros of the build: proto_cc, torpor_binary and the flags of static programs."""

_STATIC_LIBS = "@system//:static_libs"

# For cc_binary and cc_test: links the system's libraries and libstdc++
# statically; libc and libm stay dynamic. Needs STATIC_LINK_INPUTS as
# additional_linker_inputs. Not for shared libraries: abseil's archives are not
# position independent.
STATIC_LINKOPTS = [
    "-Lexternal/system/static",
    "-static-libgcc",
    "-Wl,--as-needed",
    "-Wl,--gc-sections",
]

STATIC_LINK_INPUTS = [_STATIC_LIBS]

def torpor_binary(name, linkopts = [], **kwargs):
    """cc_binary that runs on any Linux with the same or a newer libc.

    With --define=system_libraries=dynamic (the sanitizer configurations) it is
    a plain cc_binary.
    """
    native.cc_binary(
        name = name,
        linkopts = linkopts + select({
            "//third_party/bazel:dynamic_system_libraries": [],
            "//conditions:default": STATIC_LINKOPTS,
        }),
        additional_linker_inputs = select({
            "//third_party/bazel:dynamic_system_libraries": [],
            "//conditions:default": STATIC_LINK_INPUTS,
        }),
        **kwargs
    )

def _sibling(label, suffix):
    """The label of `label`'s target with a suffix, also for "//a/b"."""
    if ":" not in label:
        label += ":" + label.split("/")[-1]
    return label + suffix

def proto_cc(name, srcs, deps = [], grpc = False, alwayslink = False, visibility = None):
    """C++ code for .proto files, with gRPC stubs if `grpc`.

    The package is the root of imports and includes: proto_cc in //proto with
    the source torpor/v1/a.proto is imported as "torpor/v1/a.proto" and included
    as "torpor/v1/a.pb.h" ("torpor/v1/a.grpc.pb.h").

    Args:
      name: the cc_library. `<name>_protos` has the sources and those of deps.
      srcs: .proto files of this package, checked in or generated.
      deps: other proto_cc targets that srcs import. Google's well-known types
        need none.
      grpc: whether srcs declare services.
      alwayslink: keep the descriptors though no symbol refers to them.
      visibility: as usual.
    """
    stems = [src[:-len(".proto")] for src in srcs]
    suffixes = [".pb"] + ([".grpc.pb"] if grpc else [])
    hdrs = [stem + suffix + ".h" for stem in stems for suffix in suffixes]
    ccs = [stem + suffix + ".cc" for stem in stems for suffix in suffixes]

    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [_sibling(dep, "_protos") for dep in deps],
        visibility = visibility,
    )

    roots = {native.package_name(): True}
    for dep in deps:
        if dep.startswith("//"):
            roots[dep[2:].split(":")[0]] = True
    candidates = " ".join(["%s $(GENDIR)/%s" % (root, root) for root in roots.keys()])
    out = "$(GENDIR)/" + native.package_name()
    command = [
        "protoc",
        "$$(for d in %s; do if [ -d $$d ]; then echo -I$$d; fi; done)" % candidates,
        "--cpp_out=" + out,
    ]
    if grpc:
        command += [
            "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin)",
            "--grpc_out=" + out,
        ]
    command += srcs

    native.genrule(
        name = name + "_generate",
        srcs = [":" + name + "_protos"],
        outs = hdrs + ccs,
        cmd = " ".join(command),
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = ccs,
        hdrs = hdrs,
        alwayslink = alwayslink,
        includes = ["."],
        deps = deps + ["@system//:grpcpp" if grpc else "@system//:protobuf"],
        visibility = visibility,
    )
