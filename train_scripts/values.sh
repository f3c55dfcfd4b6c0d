# shellcheck shell=bash
# What comes from outside, before bash computes with it or prints it. Sourced by the scripts here, of tests/ and of patches/.

# shown TEXT: the text; what a terminal obeys (ESC, CR, C1, marks of direction) or what is no UTF-8 is visible, as `cat -v` has it.
shown() {
    local LC_ALL=C odd=$'\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf'
    local utf8=$'^([ -~]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf][\x80-\xbf][\x80-\xbf])*$'
    if [[ $1 =~ $utf8 && ! $1 =~ $odd ]]; then printf '%s\n' "$1"; else printf '%s' "$1" | tr '\n' ' ' | cat -v; echo; fi
}

# check_numbers LEAST NAME...: each variable is a whole number from LEAST (0 or 1) on, of 9 digits at most and without a leading zero; else
# the script ends with 2. In $(( )) and [[ -gt ]] bash runs the command in a text such as x[$(command)], and takes 08 for octal.
check_numbers() {
    local LC_ALL=C number
    for number in "${@:2}"; do
        [[ ${!number-} =~ ^(0|[1-9][0-9]{0,8})$ ]] && [ "$1:${!number}" != 1:0 ] && continue
        shown "${0#"${0%/*/*}/"}: $number is '${!number:0:200}': give a whole number$([ "$1" = 0 ] || echo " above 0") of up to 9 digits, as 100" >&2
        exit 2
    done
}
