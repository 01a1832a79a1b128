/* SPDX-License-Identifier: MIT */
/* array: see array.h.  Items are only delimited here; what parses them finds their errors,
 * brackets that do not match among them. */
#include "lib/data/array.h"

static void
in_string(struct array *a, char c)
{
    if (a->escape)
        a->escape = false;
    else if (c == '\\')
        a->escape = true;
    else if (c == '"')
        a->string = false;
}

/* A character of an item; the comma or bracket behind it ends it. */
static void
in_item(struct array *a, char *c)
{
    if (a->depth == 0 && (*c == ',' || *c == ']')) {
        a->state = *c == ',' ? ARRAY_NEXT : ARRAY_DONE;
        *c = '\n';
    } else if (*c == '"') {
        a->string = true;
    } else if (*c == '{' || *c == '[') {
        a->depth++;
    } else if ((*c == '}' || *c == ']') && a->depth) {
        a->depth--;
    }
}

/* A character outside of strings, no white space; false: it does not belong here. */
static bool
step(struct array *a, char *c)
{
    switch (a->state) {
    case ARRAY_BEGIN:
        if (*c != '[')
            return false;
        *c = ' ';
        a->state = ARRAY_FIRST;
        return true;
    case ARRAY_FIRST:
    case ARRAY_NEXT:
        if (*c == ',' || (*c == ']' && a->state == ARRAY_NEXT))
            return false;
        a->state = ARRAY_ITEM;
        break;
    case ARRAY_DONE:
        return false;
    default:
        break;
    }
    in_item(a, c);
    return true;
}

size_t
array_lines(struct array *a, char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *c = text + i;
        if (a->string)
            in_string(a, *c);
        else if (*c == '\n' || *c == '\r')
            *c = ' ';
        else if (*c != ' ' && *c != '\t' && !step(a, c))
            return i;
    }
    return n;
}

const char *
array_wants(const struct array *a)
{
    static const char *const wants[] = { [ARRAY_BEGIN] = "'['",
                                         [ARRAY_FIRST] = "a row or ']'",
                                         [ARRAY_NEXT] = "a row behind the comma",
                                         [ARRAY_ITEM] = "',' or ']' behind the row",
                                         [ARRAY_DONE] = "nothing behind the array" };
    return wants[a->state];
}
