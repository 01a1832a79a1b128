# SPDX-License-Identifier: MIT
# awk -f text.awk -f html.awk -v mode=MODE FILE: a file as a piece of HTML, in bytes
# (LC_ALL=C).  Whatever it holds becomes text: markup is escaped, controls and what is no
# UTF-8 are shown as \xNN, what is very long is cut, and says so.
#
#   table   a TSV with a header row; columns of numbers are set to the right, and of a table
#           with "before" and "after" what has changed is marked
#   text    lines
#   json    one document, a line a member; it is taken for what it is, not checked
BEGIN {
    most_cell = 1500
    most_rows = 400
    most_columns = 64
    most_lines = 1500
    FS = mode == "table" ? "\t" : "\n"
    if (mode == "json")
        RS = "\001" # once: all of it
}

function html(s)
{
    # Twice: text_short is for characters, and long texts are slow.
    s = text_short(text_safe(substr(s, 1, 4 * most_cell)), most_cell)
    gsub(/&/, "\\&amp;", s)
    gsub(/</, "\\&lt;", s)
    gsub(/>/, "\\&gt;", s)
    gsub(/"/, "\\&quot;", s)
    gsub(/'/, "\\&#39;", s)
    return s
}

{
    sub(/\r$/, "")
}

# ---- tables ----

mode == "table" && NR == 1 {
    columns = widest = NF
    if (columns > most_columns)
        columns = most_columns
    for (i = 1; i <= columns; i++) {
        head[i] = $i
        right[i] = 1
        if ($i == "before")
            before = i
        if ($i == "after")
            after = i
    }
    next
}
mode == "table" {
    if ($0 == "")
        next
    if (++rows > most_rows)
        next
    if (NF > widest)
        widest = NF
    if (NF > columns)
        columns = NF < most_columns ? NF : most_columns
    for (i = 1; i <= NF && i <= columns; i++) {
        cell[rows, i] = $i
        if ($i !~ /^[-+]?[0-9.]+([eE][-+]?[0-9]+)?( ?%| of [0-9]+)?$/ &&
            $i !~ /^(-|–|nan|NaN|-?[iI]nf)?$/)
            right[i] = 0
        else if ($i ~ /[0-9]/)
            some[i] = 1
    }
}

function put_cell(tag, i, text, class)
{
    if (right[i] && some[i])
        class = class (class ? " " : "") "n"
    printf "%s", "<" tag (class ? " class=\"" class "\"" : "") ">" html(text) "</" tag ">"
}

function put_table(    r, i)
{
    print "<div class=\"wide\"><table>"
    printf "<thead><tr>"
    for (i = 1; i <= columns; i++)
        put_cell("th", i, head[i], "")
    print "</tr></thead>"
    print "<tbody>"
    for (r = 1; r <= rows && r <= most_rows; r++) {
        printf "<tr>"
        for (i = 1; i <= columns; i++)
            put_cell("td", i, cell[r, i], before && i == after && \
                cell[r, before] != cell[r, after] ? "new" : "")
        print "</tr>"
    }
    print "</tbody></table></div>"
    if (!rows)
        print "<p class=\"note\">No rows.</p>"
    if (rows > most_rows)
        print "<p class=\"note\">The first " most_rows " of " rows " rows.</p>"
    if (widest > columns)
        print "<p class=\"note\">The first " columns " of " widest " columns.</p>"
}

# ---- text ----

# Tabs may stand in text as they are.
function tabbed(s,    i, n, part, out)
{
    n = split(substr(s, 1, 4 * most_cell), part, "\t")
    for (i = 1; i <= n; i++)
        out = out (i > 1 ? "\t" : "") html(part[i])
    return out
}

mode == "text" {
    if (++lines == 1)
        printf "<pre>"
    if (lines <= most_lines)
        print tabbed($0)
}

# ---- JSON ----

function put_json(s,    i, c, out, depth, inside, n)
{
    n = length(s)
    if (n > 100000)
        n = 100000
    for (i = 1; i <= n; i++) {
        c = substr(s, i, 1)
        if (inside) {
            out = out c
            if (c == "\\")
                out = out substr(s, ++i, 1)
            else if (c == "\"")
                inside = 0
        } else if (c == "\"") {
            out = out c
            inside = 1
        } else if (c == "{" || c == "[") {
            # What is empty stays on its line.
            if (substr(s, i + 1, 1) ~ /[]}]/)
                out = out c substr(s, ++i, 1)
            else {
                print html(out c)
                out = sprintf("%" 2 * ++depth "s", "")
            }
        } else if (c == "}" || c == "]") {
            print html(out)
            depth -= depth > 0
            out = (depth ? sprintf("%" 2 * depth "s", "") : "") c
        } else if (c == ",") {
            print html(out c)
            out = depth ? sprintf("%" 2 * depth "s", "") : ""
        } else if (c == ":") {
            out = out ": "
        } else if (c !~ /[ \t\r\n]/)
            out = out c
    }
    print html(out)
    if (n < length(s))
        print "…"
}

mode == "json" {
    printf "<pre>"
    put_json($0)
    print "</pre>"
    exit
}

END {
    if (mode == "table" && NR)
        put_table()
    if (mode == "text" && lines) {
        if (lines > most_lines)
            print "… and " lines - most_lines " more lines"
        print "</pre>"
    }
}
