/* SPDX-License-Identifier: MIT */
/* tokens: what the unit programs of lib/text share: lines of vectors, and ids. */
#ifndef NIBBLE_TESTS_UNIT_TOKENS_H
#define NIBBLE_TESTS_UNIT_TOKENS_H

#include "lib/base/json.h"
#include "lib/text/tokenizer.h"
#include "tests/unit/check.h"

#define SMALL "tests/vectors/tokenizer-small.json"
/* A text that may hold NULs. */
#define T(text) ((struct slice){ (text), sizeof(text) - 1 })

static struct guard tokens_guard;

static inline struct tokenizer *
tokens_open(const char *path)
{
    struct err err = { 0 };
    struct tokenizer *t = tokenizer_open(path, &tokens_guard, &err);
    if (!t)
        printf("%s\n", err.msg);
    NEED(t);
    return t;
}

static inline struct buf
tokens_read(FILE *f)
{
    struct buf b = { 0 };
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        buf_add(&b, chunk, n);
    NEED(!ferror(f) && !b.failed);
    return b;
}

/* One line of a file of vectors; members that a line lacks are empty. */
struct vector {
    struct slice text, prompt, target, template;
    struct ids ids, mask;
    bool raw; // the ids came as "ids_raw": without added tokens
};

static inline void
tokens_numbers(struct json *j, struct ids *out)
{
    uint64_t v;
    out->n = 0;
    NEED(json_array(j) == 0);
    while (json_item(j) > 0 && json_u63(j, &v) == 0)
        ids_add(out, (uint32_t)v);
}

static inline void
tokens_line(struct vector *v, struct slice line, struct arena *arena)
{
    struct err err = { 0 };
    struct json j;
    struct slice key;
    struct slice *text;
    json_open(&j, "vectors", 0, line, arena, &err);
    v->text = v->prompt = v->target = v->template = (struct slice){ 0 };
    v->raw = false;
    v->mask.n = 0;
    json_object(&j);
    while (json_key(&j, &key) > 0) {
        text = slice_is(key, "text")       ? &v->text
               : slice_is(key, "prompt")   ? &v->prompt
               : slice_is(key, "target")   ? &v->target
               : slice_is(key, "template") ? &v->template
                                           : NULL;
        if (text) {
            json_string(&j, text);
            continue;
        }
        v->raw |= slice_is(key, "ids_raw");
        tokens_numbers(&j, slice_is(key, "loss_mask") ? &v->mask : &v->ids);
    }
    CHECK_SAY(json_end(&j) == 0, "%s", err.msg);
}

/* Call fn for each line of a file; returns how many. */
static inline size_t
tokens_vectors(FILE *f, void (*fn)(void *ctx, const struct vector *v, size_t line),
               void *ctx)
{
    struct vector v = { 0 };
    size_t lines = 0;
    NEED(f);
    struct buf all = tokens_read(f);
    for (size_t i = 0; i < all.len;) {
        struct arena arena = { 0 };
        const char *end = memchr(all.data + i, '\n', all.len - i);
        NEED(end);
        size_t n = (size_t)(end - (all.data + i));
        tokens_line(&v, (struct slice){ all.data + i, n }, &arena);
        fn(ctx, &v, ++lines);
        arena_free(&arena);
        i += n + 1;
    }
    ids_free(&v.ids);
    ids_free(&v.mask);
    buf_free(&all);
    return lines;
}

/* Ids as words, for messages. */
static inline const char *
tokens_show(const struct ids *l)
{
    static char text[2][400];
    static unsigned which;
    char *out = text[++which % 2];
    int n = snprintf(out, sizeof text[0], "(%zu)", l->n);
    for (size_t i = 0; i < l->n && n < 380; i++)
        n += snprintf(out + n, sizeof text[0] - (size_t)n, " %u", (unsigned)l->v[i]);
    return out;
}

static inline bool
tokens_same(const struct ids *a, const struct ids *b)
{
    return a->n == b->n && (a->n == 0 || check_equal(a->v, b->v, a->n * sizeof *a->v));
}

#endif
