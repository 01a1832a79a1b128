/* SPDX-License-Identifier: MIT */
/* rows: see rows.h. */
#include "lib/data/rows.h"

#include "lib/data/columns.h"
#include "lib/data/lines.h"
#include "lib/data/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ids -------------------------------------------------------------------------- */

static int
json_ids(struct row *r, struct json *j)
{
    int more;
    if (json_array(j) < 0)
        return -1;
    while ((more = json_item(j)) > 0) {
        uint64_t id;
        if (json_u63(j, &id) < 0)
            return -1;
        if (id > UINT32_MAX)
            return json_fail(j, j->pos, "expected an id of 0..%u", UINT32_MAX);
        ids_add(&r->given.ids, (uint32_t)id);
    }
    return more;
}

static int
json_mask(struct row *r, struct json *j)
{
    int more;
    if (json_array(j) < 0)
        return -1;
    while ((more = json_item(j)) > 0) {
        uint64_t bit;
        if (json_u63(j, &bit) < 0)
            return -1;
        if (bit > 1)
            return json_fail(j, j->pos, "expected a mask of 0 and 1");
        buf_char(&r->given.mask, (char)bit);
    }
    return more;
}

static int
parse_json_ids(struct row *r, struct json *j)
{
    bool ids = false, mask = false;
    struct slice key;
    int more;
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        if (slice_is(key, "ids")) {
            if (json_once(j, &ids, "ids") == 0)
                json_ids(r, j);
        } else if (slice_is(key, "mask")) {
            if (json_once(j, &mask, "mask") == 0)
                json_mask(r, j);
        } else {
            json_skip(j, NULL);
        }
    }
    if (more < 0 || json_end(j) < 0)
        return -1;
    if (!ids)
        return json_fail(j, 0, "expected \"ids\"");
    if (mask && r->given.mask.len != r->given.ids.n)
        return json_fail(j, 0, "expected a mask of %zu, found %zu", r->given.ids.n,
                         r->given.mask.len);
    if (!mask)
        buf_fill(&r->given.mask, 1, r->given.ids.n);
    return 0;
}

static bool
is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static int
parse_plain_ids(struct row *r, struct slice line, uint64_t offset, struct err *err)
{
    for (size_t i = 0; i < line.n;) {
        uint64_t id = 0;
        size_t at = i;
        if (is_blank(line.p[i])) {
            i++;
            continue;
        }
        for (; i < line.n && line.p[i] >= '0' && line.p[i] <= '9' && id <= UINT32_MAX;
             i++)
            id = 10 * id + (uint64_t)(line.p[i] - '0');
        if (i == at || id > UINT32_MAX || (i < line.n && !is_blank(line.p[i]))) {
            char q[TEXT_QUOTE];
            size_t n = 1;
            while (at + n < line.n && n < 24 && !is_blank(line.p[at + n]))
                n++;
            return err_set(err, ERR_FORMAT,
                           ": byte %llu: expected an id of 0..%u, found \"%s\"",
                           (unsigned long long)(offset + at), UINT32_MAX,
                           text_quote(q, line.p + at, n));
        }
        ids_add(&r->given.ids, (uint32_t)id);
    }
    buf_fill(&r->given.mask, 1, r->given.ids.n);
    return 0;
}

/* ---- a line ------------------------------------------------------------------------ */

static void
parse_tsv(struct row *r, struct slice line)
{
    static const char no_tab[] = "expected prompt, TAB, target: found no TAB",
                      empty[] = "expected prompt, TAB, target: one of them is empty";
    switch (line_tsv(line, &r->prompt, &r->target)) {
    case TSV_PAIR:
        r->kind = ROW_PAIR;
        if (memchr(r->target.p, '\t', r->target.n))
            snprintf(r->remark, sizeof r->remark,
                     "has several TABs: all behind the first one is the answer");
        break;
    case TSV_NO_TAB:
        r->kind = ROW_SKIPPED;
        // A TAB at an end is trimmed.
        r->why = line.n && memchr(line.p, '\t', line.n) ? empty : no_tab;
        break;
    case TSV_EMPTY_SIDE:
        r->kind = ROW_SKIPPED;
        r->why = empty;
        break;
    default:
        r->kind = ROW_NOTHING;
    }
}

static bool
is_blank_line(struct slice line)
{
    size_t i = 0;
    while (i < line.n && is_blank(line.p[i]))
        i++;
    return i == line.n;
}

static int
parse_ids(struct row *r, struct json *j, struct slice line, uint64_t offset,
          struct err *err)
{
    r->kind = ROW_IDS;
    int rc = json_peek(j) == '{' ? parse_json_ids(r, j)
                                 : parse_plain_ids(r, line, offset, err);
    if (rc == 0)
        rc = ids_ok(&r->given.ids, err);
    return rc == 0 ? buf_ok(&r->given.mask, err) : rc;
}

int
row_parse(struct row *r, const struct row_form *form, struct slice line,
          uint64_t offset, struct err *err)
{
    struct json j;
    r->messages.n = 0;
    r->given.ids.n = 0;
    r->given.mask.len = 0;
    r->remark[0] = '\0';
    if (r->arena.head)
        arena_free(&r->arena);
    json_open(&j, "", offset, line, &r->arena, err);
    switch (form->kind) {
    case INPUT_TSV:
        parse_tsv(r, line);
        return 0;
    case INPUT_JSONL:
        r->kind = ROW_NOTHING;
        return is_blank_line(line) ? 0 : shape_parse(r, &j, form->names);
    case INPUT_CSV:
        return columns_parse(r, form->columns, line, offset, err);
    case INPUT_LINES:
        r->kind = ROW_TEXT;
        r->text = line;
        return 0;
    default: // INPUT_IDS
        return parse_ids(r, &j, line, offset, err);
    }
}

void
row_free(struct row *r)
{
    messages_free(&r->messages);
    rendered_free(&r->given);
    arena_free(&r->arena);
}
