"""A tarball of stripped programs."""

def bundle(name, out, files, max_mib = 25, **kwargs):
    """Packs files into `out` (.tar.xz) below one folder named like it.

    Args:
      name: the genrule.
      out: the tarball.
      files: label of a single file: folder inside the tarball, "" for the top.
      max_mib: the build fails if the tarball is larger.
      **kwargs: passed to the genrule.
    """
    root = out[:-len(".tar.xz")]
    cmd = [
        "set -euo pipefail",
        "d=$(@D)/%s.staging" % name,
        "rm -rf $$d",
    ]
    for label, folder in files.items():
        target = "$$d/%s/%s" % (root, folder)
        cmd += [
            "mkdir -p %s" % target,
            "cp -L $(location %s) %s" % (label, target),
        ]
    cmd += [
        "chmod -R u+w,go+rX $$d",
        "for f in $$(find $$d -type f); do" +
        " if [ \"$$(head -c4 $$f | tail -c3)\" = ELF ]; then strip --strip-unneeded $$f; fi; done",
        "tar -C $$d --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner" +
        " --use-compress-program='xz -6 -T0' -cf $@ %s" % root,
        "rm -rf $$d",
        "size=$$(stat -c %s $@)",
        ("if [ $$size -gt %d ]; then echo $@: $$size bytes, more than %d MiB >&2; exit 1; fi" %
         (max_mib << 20, max_mib)),
    ]
    native.genrule(
        name = name,
        srcs = files.keys(),
        outs = [out],
        cmd = "; ".join(cmd),
        **kwargs
    )
