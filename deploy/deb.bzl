"""A Debian package."""

def deb(name, out, version, files, control, **kwargs):
    """Packs files into `out` (.deb).

    Args:
      name: the genrule.
      out: the package.
      version: its version.
      files: label: "path:mode", "folder/:mode" or "folder//:mode", without the first slash; the last
        one keeps the folders below the label's first one.
      control: labels of control.in and the maintainer scripts, all of one folder.
      **kwargs: passed to the genrule.
    """
    builder = "//deploy:debian/build_deb.sh"
    items = [
        "$$(for f in $(locations %s); do echo \"$$f=\"'%s'; done)" % (label, target)
        for label, target in files.items()
    ]
    native.genrule(
        name = name,
        srcs = files.keys() + control,
        outs = [out],
        cmd = "$(location %s) $@ %s $$(dirname $(location %s)) %s" %
              (builder, version, control[0], " ".join(items)),
        tools = [builder],
        **kwargs
    )
