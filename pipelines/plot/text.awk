# SPDX-License-Identifier: MIT
# Functions for awk -f, in bytes (LC_ALL=C): text from files made safe to show.

function text_init(    i)
{
    for (i = 1; i < 256; i++)
        text_code[sprintf("%c", i)] = i
    text_ready = 1
}

# The length of the UTF-8 character that begins at byte i of s, 0 if there is none that may
# be shown: a control, what turns the direction of writing, or what is no UTF-8; those that
# lib/core/text.c escapes.
function text_length(s, i,    a, b, c, n, k)
{
    a = text_code[substr(s, i, 1)]
    if (a < 128)
        return a >= 32 && a != 127
    n = a < 194 ? 0 : a < 224 ? 2 : a < 240 ? 3 : a < 245 ? 4 : 0
    if (n == 0 || i + n - 1 > length(s))
        return 0
    for (k = 1; k < n; k++) {
        b = text_code[substr(s, i + k, 1)]
        if (b < 128 || b > 191)
            return 0
    }
    b = text_code[substr(s, i + 1, 1)]
    c = n > 2 ? text_code[substr(s, i + 2, 1)] : 0
    if (a == 224 && b < 160 || a == 237 && b > 159 || a == 240 && b < 144 || a == 244 && b > 143)
        return 0
    if (a == 194 && b < 160 || a == 216 && b == 156)
        return 0
    if (a == 226 && b == 128 && (c == 142 || c == 143 || c >= 168 && c <= 174))
        return 0
    if (a == 226 && b == 129 && c >= 166 && c <= 169)
        return 0
    return n
}

# s with \t and \xNN for what may not be shown; a backslash stays one.
function text_safe(s,    i, n, out)
{
    if (s !~ /[^ -~]/)
        return s
    if (!text_ready)
        text_init()
    for (i = 1; i <= length(s); i += n ? n : 1) {
        n = text_length(s, i)
        if (n)
            out = out substr(s, i, n)
        else if (substr(s, i, 1) == "\t")
            out = out "\\t"
        else
            out = out "\\x" sprintf("%02x", text_code[substr(s, i, 1)])
    }
    return out
}

# At most `most` characters of what text_safe gave, those in the middle left out.
function text_short(s, most,    chars, i, n, head, tail)
{
    # Bytes that continue a character begin none.
    chars = length(s) - gsub(/[\200-\277]/, "&", s)
    if (chars <= most)
        return s
    for (i = 1; i <= length(s); i++) {
        if (substr(s, i, 1) !~ /[\200-\277]/)
            n++
        if (n <= int(most / 2))
            head = i
        else if (n == chars - (most - int(most / 2) - 1) + 1) {
            tail = i
            break
        }
    }
    return substr(s, 1, head) "…" (tail ? substr(s, tail) : "")
}
