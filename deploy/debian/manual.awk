# A program's --help as a manual page. Variables: program, version, date, about.
BEGIN {
  printf ".TH %s 1 \"%s\" \"torpor %s\"\n", toupper(program), date, version
  printf ".SH NAME\n%s \\- %s\n.SH DESCRIPTION\n.nf\n", program, about
}
{
  gsub(/\\/, "\\e")
  gsub(/-/, "\\-")
  sub(/^[.']/, "\\\\\\&&")
  print
}
END { print ".fi\n.SH SEE ALSO\n/usr/share/doc/torpor/reference.md" }
