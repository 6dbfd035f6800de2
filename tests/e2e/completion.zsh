# What becomes of command lines on the terminal of an interactive zsh when TAB is pressed.
#
#   zsh -f completion.zsh FOLDER < LINES
#
# FOLDER has "_torporctl", and is for scratch files. Of each line prints all that TAB makes of it,
# one after the other, and then an empty line.
zmodload zsh/zpty
folder=$1
fifo=$folder/buffer
rm -f $fifo
mkfifo $fifo
exec 3<> $fifo
zpty z TERM=xterm zsh -f -i
# Types, and waits until all of it is done: `buffer` is the line then, `matches` what TAB has found.
type_keys() {
  local said
  while zpty -rt z said; do :; done
  zpty -wn z "$1"$'\x18\x02'
  read -r matches buffer <&3
}
zpty -w z "PS1= fpath=($folder \$fpath); autoload -Uz compinit; compinit -u -d $folder/dump"
zpty -w z "look() { print -r -- \"\${_lastcomp[nmatches]:-0} <\$BUFFER>\" > $fifo }; zle -N look"
zpty -w z "bindkey -e; bindkey '^X^B' look; setopt menu_complete"
while IFS= read -r line; do
  type_keys $'\x15'"_lastcomp=()"$'\n'
  type_keys "$line"$'\t'
  for ((i = 1; i <= matches; i++)); do
    print -r -- ${${buffer#<}%>}
    ((i == matches)) || type_keys $'\t'
  done
  print
done
zpty -d z
