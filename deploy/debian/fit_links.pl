# Makes the links of pages those of a folder in which docs/ and what lies beside it are one:
#
#   perl fit_links.pl FOLDER
#
# A link to what is not in there becomes its text.
use strict;
use warnings;
use File::Find;
use File::Spec::Functions qw(abs2rel catfile);

my $root = shift;

# "a/../b" as "b"
sub normal {
  my @parts;
  for my $part (split m{/}, shift) {
    next if $part eq '' || $part eq '.';
    if ($part eq '..' && @parts && $parts[-1] ne '..') { pop @parts } else { push @parts, $part }
  }
  return join '/', @parts;
}

sub fit {
  my ($page, $text, $link) = @_;
  return "[$text]($link)" if $link =~ m{^(?:[a-z]+:|#)};
  my ($path, $anchor) = $link =~ m{^([^#]*)(.*)$};
  # CHANGELOG.md lies beside docs.
  my $from = $page eq 'CHANGELOG.md' ? '' : 'docs/' . ($page =~ m{^(.*/)}s ? $1 : '');
  my $target = normal("$from$path");
  $target =~ s{^docs(?:/|$)}{};
  return $text unless $target ne '' && -e catfile($root, $target);
  my ($folder) = $page =~ m{^(.*)/}s;
  return "[$text](" . abs2rel(catfile($root, $target), catfile($root, $folder // '.')) . "$anchor)";
}

sub fit_page {
  my ($path) = @_;
  my $page = abs2rel($path, $root);
  open my $in, '<', $path or die "$path: $!";
  my $content = do { local $/; <$in> };
  close $in;
  $content =~ s{\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)}{fit($page, $1, $2)}ge;
  open my $out, '>', $path or die "$path: $!";
  print $out $content;
  close $out or die "$path: $!";
}

find({ no_chdir => 1, wanted => sub { fit_page($_) if /\.md$/ } }, $root);
