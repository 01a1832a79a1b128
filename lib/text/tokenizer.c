/* SPDX-License-Identifier: MIT */
/* tokenizer: the loader of tokenizer.json, see tokenizer.h.
 *
 * What a file may hold (doc: the Hugging Face tokenizers format) and what becomes of it:
 *
 *   another kind of normaliser, pre-tokenizer, model or decoder, a setting that would
 *   change ids, an unknown key: refused, since it could change ids
 *   ids that no token has (holes): allowed; decoding such an id is an error
 *   a token or an id twice, an empty token, characters outside the byte alphabet: refused
 *   a merge of unknown tokens or into one, a merge twice: refused
 *   a byte without a token: refused, since some text would have no ids
 *   an added token that is in the vocabulary too: allowed with the same id only
 */
#include "lib/text/tokenizer.h"

#include "lib/base/grow.h"
#include "lib/base/json.h"
#include "lib/file/foreign.h"
#include "lib/file/map.h"
#include "lib/text/split.h"
#include "lib/text/vocab.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALPHABET = 0x144, // code points that stand for bytes are below
    NO_BYTE = 0xffff,
    MIN_IDS = 1 << 20, // an id may be this high in a file of any size
    SLOT_BYTES = 32,   // of the file for each slot of the first table: no growing
};

struct loader {
    struct json j;
    struct tokenizer *t;
    uint16_t byte_of[ALPHABET]; // the byte that a character stands for
    struct slot {
        uint32_t tag; // of the hash: most tokens need no look at their bytes
        uint32_t id1; // 1 + id, 0 is empty
    } * slot;         // tokens by their bytes
    size_t n_slots, n_tokens;
    size_t max_id;
    struct buf scratch; // the bytes of a string, of a merged token
    struct bpe_merge *merge;
    size_t n_merges, cap_merges;
    struct added_entry {
        uint32_t id;
        size_t at; // in the file
        struct slice text;
    } * added;
    size_t n_added, cap_added;
};

/* ---- words for errors, and objects with fixed keys ---------------------------- */

static int
no_memory(struct loader *l)
{
    return err_set(l->j.err, ERR_MEMORY, "%s: out of memory for the tokenizer",
                   l->j.file);
}

/* The next key of an object with fixed keys: its number with its value to be
 * read, the number of names at the end, or -1.  seen has a bit for each key. */
static int
next_key(struct json *j, const char *const *names, int n, unsigned *seen)
{
    struct slice key;
    char q[TEXT_QUOTE];
    int more = json_key(j, &key);
    if (more <= 0)
        return more < 0 ? -1 : n;
    for (int i = 0; i < n; i++)
        if (slice_is(key, names[i])) {
            if (*seen & 1u << i)
                return json_fail(j, j->pos, "key \"%s\" appears twice in one object",
                                 names[i]);
            *seen |= 1u << i;
            return i;
        }
    return json_fail(j, j->pos,
                     "unknown key %s: expected the byte-level BPE of a Qwen "
                     "tokenizer",
                     text_quote(q, key.p, key.n));
}

/* The string that must stand here. */
static int
expect_text(struct json *j, const char *what, const char *want)
{
    struct slice s;
    char q[TEXT_QUOTE], w[TEXT_QUOTE];
    size_t at = (json_peek(j), j->pos);
    if (json_string(j, &s) < 0)
        return -1;
    if (slice_is(s, want))
        return 0;
    return json_fail(j, at, "%s: expected \"%s\", found \"%s\"", what,
                     text_quote(w, want, strlen(want)), text_quote(q, s.p, s.n));
}

static int
expect_false(struct json *j, const char *what)
{
    bool v;
    size_t at = (json_peek(j), j->pos);
    if (json_bool(j, &v) < 0)
        return -1;
    return v ? json_fail(j, at, "%s: expected false, found true", what) : 0;
}

static int
expect_null(struct json *j, const char *what)
{
    struct slice raw;
    char q[TEXT_QUOTE];
    if (json_peek(j) == 'n')
        return json_null(j);
    size_t at = j->pos;
    if (json_skip(j, &raw) < 0)
        return -1;
    return json_fail(j, at, "%s: expected null, found %s", what,
                     text_quote(q, raw.p, raw.n < 40 ? raw.n : 40));
}

/* null or "": no prefix. */
static int
expect_nothing(struct json *j, const char *what)
{
    return json_peek(j) == 'n' ? json_null(j) : expect_text(j, what, "");
}

static int
need_keys(struct json *j, unsigned seen, unsigned want, const char *what)
{
    if ((seen & want) == want)
        return 0;
    return json_fail(j, j->pos, "%s: a key is missing", what);
}

/* ---- the pipeline ----------------------------------------------------------- */

static int
read_normalizer(struct json *j)
{
    static const char *const names[] = { "type" };
    unsigned seen = 0;
    int key;
    if (json_object(j) < 0)
        return -1;
    while ((key = next_key(j, names, 1, &seen)) == 0)
        if (expect_text(j, "normalizer", "NFC") < 0)
            return -1;
    return key < 0 ? -1 : need_keys(j, seen, 1, "normalizer");
}

/* trim_offsets is about positions in a text, which we do not give: any value will do. */
static int
read_byte_level(struct json *j, const char *what)
{
    static const char *const names[] = { "type", "add_prefix_space", "use_regex",
                                         "trim_offsets" };
    unsigned seen = 0;
    int key, rc;
    bool any;
    if (json_object(j) < 0)
        return -1;
    while ((key = next_key(j, names, 4, &seen)) != 4) {
        if (key < 0)
            return -1;
        if (key == 0)
            rc = expect_text(j, what, "ByteLevel");
        else if (key == 3)
            rc = json_bool(j, &any);
        else
            rc = expect_false(j, key == 1 ? "add_prefix_space" : "use_regex");
        if (rc < 0)
            return -1;
    }
    return need_keys(j, seen, 7, what);
}

static int
read_pattern(struct json *j)
{
    static const char *const names[] = { "Regex" };
    unsigned seen = 0;
    int key;
    if (json_object(j) < 0)
        return -1;
    while ((key = next_key(j, names, 1, &seen)) == 0)
        if (expect_text(j, "pre_tokenizer pattern", split_regex) < 0)
            return -1;
    return key < 0 ? -1 : need_keys(j, seen, 1, "pre_tokenizer pattern");
}

static int
read_split(struct json *j)
{
    static const char *const names[] = { "type", "pattern", "behavior", "invert" };
    unsigned seen = 0;
    int key, rc;
    if (json_object(j) < 0)
        return -1;
    while ((key = next_key(j, names, 4, &seen)) != 4) {
        if (key < 0)
            return -1;
        if (key == 0)
            rc = expect_text(j, "first pre_tokenizer", "Split");
        else if (key == 1)
            rc = read_pattern(j);
        else if (key == 2)
            rc = expect_text(j, "behavior", "Isolated");
        else
            rc = expect_false(j, "invert");
        if (rc < 0)
            return -1;
    }
    return need_keys(j, seen, 15, "first pre_tokenizer");
}

static int
read_pre_tokenizers(struct json *j)
{
    int n = 0, more;
    if (json_array(j) < 0)
        return -1;
    while ((more = json_item(j)) > 0 && n < 2) {
        if ((n == 0 ? read_split(j) : read_byte_level(j, "second pre_tokenizer")) < 0)
            return -1;
        n++;
    }
    if (more < 0)
        return -1;
    if (more > 0 || n < 2)
        return json_fail(j, j->pos,
                         "pre_tokenizer: expected two steps, Split and ByteLevel");
    return 0;
}

static int
read_pre_tokenizer(struct json *j)
{
    static const char *const names[] = { "type", "pretokenizers" };
    unsigned seen = 0;
    int key;
    if (json_object(j) < 0)
        return -1;
    while ((key = next_key(j, names, 2, &seen)) != 2) {
        if (key < 0)
            return -1;
        if ((key == 0 ? expect_text(j, "pre_tokenizer", "Sequence")
                      : read_pre_tokenizers(j)) < 0)
            return -1;
    }
    return need_keys(j, seen, 3, "pre_tokenizer");
}

/* ---- tokens ----------------------------------------------------------------- */

/* The alphabet of GPT-2: printable bytes of Latin-1 stand for themselves, the other
 * 68, in order, are U+0100 and on. */
static void
fill_alphabet(struct loader *l)
{
    unsigned next = 0x100;
    memset(l->byte_of, 0xff, sizeof l->byte_of); // NO_BYTE
    for (unsigned c = 0; c < 256; c++) {
        bool itself = (c >= 33 && c <= 126) || (c >= 161 && c != 173);
        l->byte_of[itself ? c : next++] = (uint16_t)c;
    }
}

/* Append the bytes that a string stands for to the scratch buffer. */
static int
add_bytes(struct loader *l, struct slice s, size_t at)
{
    char q[TEXT_QUOTE];
    struct slice rest = s;
    while (rest.n) {
        uint32_t cp;
        unsigned n = utf8_char(&cp, rest.p, rest.n);
        uint16_t byte = n && cp < ALPHABET ? l->byte_of[cp] : NO_BYTE;
        if (byte == NO_BYTE)
            return json_fail(
                &l->j, at,
                "token \"%s\": U+%04X stands for no byte in the byte-level "
                "alphabet",
                text_quote(q, s.p, s.n), (unsigned)cp);
        buf_char(&l->scratch, (char)byte);
        rest.p += n;
        rest.n -= n;
    }
    return 0;
}

static struct slice
bytes_of(const struct tokenizer *t, uint32_t id)
{
    struct bpe_text x = t->bpe.text[id];
    return (struct slice){ t->bpe.bytes.data + x.at, x.n };
}

/* The slot of a token with these bytes, or the empty one where it belongs, which has
 * the tag already. */
static struct slot *
slot_for(const struct loader *l, struct slice bytes)
{
    uint64_t h = xxh3_64(bytes.p, bytes.n);
    size_t i = h & (l->n_slots - 1);
    uint32_t tag = (uint32_t)(h >> 32);
    while (l->slot[i].id1 && !(l->slot[i].tag == tag &&
                               slice_eq(bytes_of(l->t, l->slot[i].id1 - 1), bytes)))
        i = (i + 1) & (l->n_slots - 1);
    if (!l->slot[i].id1)
        l->slot[i].tag = tag;
    return l->slot + i;
}

/* The id of the token with these bytes, or TOKEN_NONE. */
static uint32_t
id_of(const struct loader *l, struct slice bytes)
{
    return bytes.n && l->n_slots ? slot_for(l, bytes)->id1 - 1 : TOKEN_NONE;
}

static int
grow_slots(struct loader *l)
{
    struct slot *old = l->slot;
    size_t n = l->n_slots;
    if (l->n_tokens * 2 < n)
        return 0;
    l->n_slots = n ? n * 4 : 1 << 10;
    while (n == 0 && l->n_slots < l->j.len / SLOT_BYTES)
        l->n_slots *= 2;
    l->slot = calloc(l->n_slots, sizeof *l->slot);
    for (size_t i = 0; l->slot && i < n; i++)
        if (old[i].id1)
            slot_for(l, bytes_of(l->t, old[i].id1 - 1))->id1 = old[i].id1;
    free(old);
    return l->slot ? 0 : no_memory(l);
}

/* Make id a place in the table of texts. */
static int
reach_id(struct loader *l, uint64_t id, size_t at)
{
    struct bpe *b = &l->t->bpe;
    if (id > l->max_id)
        return json_fail(&l->j, at,
                         "id %llu: expected at most %zu in a file of this size",
                         (unsigned long long)id, l->max_id);
    if (id < b->n_text)
        return 0;
    size_t cap = b->n_text;
    while (cap <= id)
        cap = cap ? cap * 2 : 1024;
    struct bpe_text *text = realloc(b->text, cap * sizeof *text);
    if (!text)
        return no_memory(l);
    memset(text + b->n_text, 0, (cap - b->n_text) * sizeof *text);
    b->text = text;
    b->n_text = cap; // for now; the end of loading cuts it
    return 0;
}

/* Give an id its bytes. */
static int
set_text(struct loader *l, uint32_t id, struct slice bytes, size_t at)
{
    struct bpe *b = &l->t->bpe;
    if (bytes.n == 0)
        return json_fail(&l->j, at, "id %u: an empty token", (unsigned)id);
    if (b->text[id].n)
        return json_fail(&l->j, at, "id %u: two tokens have it", (unsigned)id);
    b->text[id] = (struct bpe_text){ b->bytes.len, bytes.n };
    buf_add(&b->bytes, bytes.p, bytes.n);
    return b->bytes.failed ? no_memory(l) : 0;
}

static int
read_token(struct loader *l, struct slice key, size_t at)
{
    char q[TEXT_QUOTE];
    uint64_t id;
    l->scratch.len = 0;
    if (json_u63(&l->j, &id) < 0 || add_bytes(l, key, at) < 0 ||
        reach_id(l, id, at) < 0 || grow_slots(l) < 0)
        return -1;
    if (l->scratch.failed)
        return no_memory(l);
    struct slice bytes = { l->scratch.data, l->scratch.len };
    struct slot *slot = slot_for(l, bytes);
    if (slot->id1)
        return json_fail(&l->j, at, "token \"%s\" appears twice in the vocabulary",
                         text_quote(q, key.p, key.n));
    if (set_text(l, (uint32_t)id, bytes, at) < 0)
        return -1;
    slot->id1 = (uint32_t)id + 1;
    l->n_tokens++;
    return 0;
}

static int
read_vocab(struct loader *l)
{
    struct slice key;
    int more;
    if (json_object(&l->j) < 0)
        return -1;
    while ((more = json_key(&l->j, &key)) > 0)
        if (read_token(l, key, l->j.pos) < 0)
            return -1;
    return more;
}

/* ---- merges ----------------------------------------------------------------- */

/* The id of the token whose bytes stand in scratch from place from on.  Looking it up
 * costs three cache misses, so *id is tried first. */
static int
known_token(struct loader *l, uint32_t *id, size_t from, size_t at)
{
    char q[TEXT_QUOTE];
    struct slice bytes = { l->scratch.data + from, l->scratch.len - from };
    if (slice_eq(tokenizer_bytes(l->t, *id), bytes) && bytes.n)
        return 0;
    *id = id_of(l, bytes);
    if (*id != TOKEN_NONE)
        return 0;
    return json_fail(&l->j, at, "merge %zu: \"%s\" is not in the vocabulary",
                     l->n_merges, text_quote(q, bytes.p, bytes.n));
}

static int
add_merge(struct loader *l, struct slice left, struct slice right, size_t at)
{
    // Files are written in the order of merges: one makes the token behind the last.
    struct bpe_merge m = { .left = TOKEN_NONE,
                           .right = TOKEN_NONE,
                           .rank = (uint32_t)l->n_merges,
                           .id = l->n_merges ? l->merge[l->n_merges - 1].id + 1 : 0 };
    l->scratch.len = 0;
    buf_char(&l->scratch, '\0'); // so that there is data, also without any bytes
    if (add_bytes(l, left, at) < 0 || known_token(l, &m.left, 1, at) < 0)
        return -1;
    size_t middle = l->scratch.len;
    if (add_bytes(l, right, at) < 0 || known_token(l, &m.right, middle, at) < 0 ||
        known_token(l, &m.id, 1, at) < 0)
        return -1;
    if (!GROW(l->merge, l->n_merges, l->cap_merges, 64))
        return no_memory(l);
    l->merge[l->n_merges++] = m;
    return 0;
}

/* Both forms: ["a","b"], and "a b" with one space, which is no character of a token. */
static int
read_merge(struct loader *l)
{
    struct json *j = &l->j;
    struct slice left, right;
    size_t at = (json_peek(j), j->pos);
    if (json_peek(j) == '[') {
        if (json_array(j) < 0 || json_item(j) <= 0 || json_string(j, &left) < 0 ||
            json_item(j) <= 0 || json_string(j, &right) < 0 || json_item(j) != 0)
            return j->err->kind ? -1
                                : json_fail(j, at, "merge %zu: expected two strings",
                                            l->n_merges);
        return add_merge(l, left, right, at);
    }
    if (json_string(j, &left) < 0)
        return -1;
    const char *space = memchr(left.p, ' ', left.n);
    if (!space)
        return json_fail(j, at, "merge %zu: expected two tokens and a space between",
                         l->n_merges);
    right = (struct slice){ space + 1, left.n - (size_t)(space + 1 - left.p) };
    left.n = (size_t)(space - left.p);
    return add_merge(l, left, right, at);
}

static int
read_merges(struct loader *l)
{
    int more;
    if (json_array(&l->j) < 0)
        return -1;
    while ((more = json_item(&l->j)) > 0)
        if (read_merge(l) < 0)
            return -1;
    return more;
}

/* ---- model and added tokens ------------------------------------------------- */

static int
read_model(struct loader *l)
{
    enum {
        TYPE,
        DROPOUT,
        UNK,
        PREFIX,
        SUFFIX,
        FUSE,
        FALLBACK,
        IGNORE,
        VOCAB,
        MERGES,
        N
    };
    static const char *const names[] = { "type",
                                         "dropout",
                                         "unk_token",
                                         "continuing_subword_prefix",
                                         "end_of_word_suffix",
                                         "fuse_unk",
                                         "byte_fallback",
                                         "ignore_merges",
                                         "vocab",
                                         "merges" };
    struct json *j = &l->j;
    unsigned seen = 0;
    int key, rc;
    if (json_object(j) < 0)
        return -1;
    while ((key = next_key(j, names, N, &seen)) != N) {
        if (key < 0)
            return -1;
        if (key == TYPE)
            rc = expect_text(j, "model", "BPE");
        else if (key == DROPOUT || key == UNK)
            rc = expect_null(j, names[key]);
        else if (key == PREFIX || key == SUFFIX)
            rc = expect_nothing(j, names[key]);
        else if (key == FUSE || key == FALLBACK || key == IGNORE)
            rc = expect_false(j, names[key]);
        else if (key == VOCAB)
            rc = read_vocab(l);
        else if (seen & 1u << VOCAB)
            rc = read_merges(l);
        else
            rc = json_fail(j, j->pos, "merges before the vocabulary");
        if (rc < 0)
            return -1;
    }
    return need_keys(j, seen, 1u << TYPE | 1u << VOCAB | 1u << MERGES, "model");
}

static int
read_added_token(struct loader *l)
{
    enum { ID, CONTENT, SINGLE_WORD, LSTRIP, RSTRIP, NORMALIZED, SPECIAL, N };
    static const char *const names[] = { "id",     "content", "single_word",
                                         "lstrip", "rstrip",  "normalized",
                                         "special" };
    struct json *j = &l->j;
    struct added_entry a = { .at = (json_peek(j), j->pos) };
    uint64_t id = 0;
    unsigned seen = 0;
    int key, rc;
    bool special;
    if (json_object(j) < 0)
        return -1;
    while ((key = next_key(j, names, N, &seen)) != N) {
        if (key < 0)
            return -1;
        if (key == ID)
            rc = json_u63(j, &id) < 0 ? -1 : reach_id(l, id, a.at);
        else if (key == CONTENT)
            rc = json_string(j, &a.text);
        else if (key == SPECIAL)
            rc = json_bool(j, &special);
        else
            rc = expect_false(j, names[key]);
        if (rc < 0)
            return -1;
    }
    a.id = (uint32_t)id;
    if (need_keys(j, seen, 3, "added token") < 0)
        return -1;
    if (!GROW(l->added, l->n_added, l->cap_added, 64))
        return no_memory(l);
    l->added[l->n_added++] = a;
    return 0;
}

static int
read_added(struct loader *l)
{
    int more;
    if (json_array(&l->j) < 0)
        return -1;
    while ((more = json_item(&l->j)) > 0)
        if (read_added_token(l) < 0)
            return -1;
    return more;
}

static int
read_file(struct loader *l)
{
    enum {
        VERSION,
        TRUNCATION,
        PADDING,
        ADDED,
        NORMALIZER,
        PRE,
        POST,
        DECODER,
        MODEL,
        N
    };
    static const char *const names[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",
    };
    struct json *j = &l->j;
    unsigned seen = 0;
    int key, rc;
    if (json_object(j) < 0)
        return -1;
    while ((key = next_key(j, names, N, &seen)) != N) {
        if (key < 0)
            return -1;
        if (key == VERSION)
            rc = expect_text(j, "version", "1.0");
        else if (key == TRUNCATION || key == PADDING)
            rc = expect_null(j, names[key]);
        else if (key == ADDED)
            rc = read_added(l);
        else if (key == NORMALIZER)
            rc = read_normalizer(j);
        else if (key == PRE)
            rc = read_pre_tokenizer(j);
        else if (key == MODEL)
            rc = read_model(l);
        else if (key == POST && json_peek(j) == 'n')
            rc = json_null(j); // a ByteLevel here changes offsets only
        else
            rc = read_byte_level(j, names[key]);
        if (rc < 0)
            return -1;
    }
    if (need_keys(j, seen, 1u << NORMALIZER | 1u << PRE | 1u << DECODER | 1u << MODEL,
                  "tokenizer.json") < 0)
        return -1;
    return json_end(j);
}

/* ---- the end of loading ----------------------------------------------------- */

/* Added tokens may come before the vocabulary in the file, so they get their ids now. */
static int
place_added(struct loader *l)
{
    struct tokenizer *t = l->t;
    char q[TEXT_QUOTE];
    if (l->n_added && !(t->added = calloc(l->n_added, sizeof *t->added)))
        return no_memory(l);
    for (size_t i = 0; i < l->n_added; i++) {
        struct added_entry a = l->added[i];
        uint32_t in_vocab = id_of(l, a.text);
        if (in_vocab != TOKEN_NONE && in_vocab != a.id)
            return json_fail(
                &l->j, a.at, "added token \"%s\" has id %u, and %u in the vocabulary",
                text_quote(q, a.text.p, a.text.n), (unsigned)a.id, (unsigned)in_vocab);
        if (in_vocab == TOKEN_NONE && set_text(l, a.id, a.text, a.at) < 0)
            return -1;
        t->added[t->n_added++].id = a.id;
    }
    return 0;
}

static int
compare_added(const void *a, const void *b)
{
    struct slice x = ((const struct added *)a)->text,
                 y = ((const struct added *)b)->text;
    int c = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return c ? c : (x.n > y.n) - (x.n < y.n);
}

/* The texts no longer move: point to them, sort, and look for the same one twice. */
static int
sort_added(struct loader *l)
{
    struct tokenizer *t = l->t;
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < t->n_added; i++) {
        t->added[i].text = bytes_of(t, t->added[i].id);
        t->begins[(uint8_t)t->added[i].text.p[0]] = true;
    }
    if (t->n_added)
        qsort(t->added, t->n_added, sizeof *t->added, compare_added);
    for (size_t i = 1; i < t->n_added; i++)
        if (compare_added(t->added + i - 1, t->added + i) == 0)
            return err_set(l->j.err, ERR_FORMAT, "%s: added token \"%s\" appears twice",
                           l->j.file,
                           text_quote(q, t->added[i].text.p, t->added[i].text.n));
    return 0;
}

/* Each byte must be a token, or there would be text without ids. */
static int
find_bytes(struct loader *l)
{
    for (unsigned c = 0; c < 256; c++) {
        char byte = (char)c;
        uint32_t id = id_of(l, (struct slice){ &byte, 1 });
        if (id == TOKEN_NONE)
            return err_set(l->j.err, ERR_FORMAT,
                           "%s: the vocabulary has no token for byte 0x%02x", l->j.file,
                           c);
        l->t->bpe.byte_id[c] = id;
    }
    return 0;
}

static int
place_merges(struct loader *l)
{
    struct bpe *b = &l->t->bpe;
    uint32_t first;
    if (!bpe_reserve_merges(b, l->n_merges))
        return no_memory(l);
    for (size_t i = 0; i < l->n_merges; i++)
        if (!bpe_add_merge(b, l->merge[i], &first))
            return err_set(l->j.err, ERR_FORMAT, "%s: merge %zu repeats merge %u",
                           l->j.file, i, (unsigned)first);
    return 0;
}

static int
finish_loading(struct loader *l)
{
    struct bpe *b = &l->t->bpe;
    if (place_added(l) < 0 || find_bytes(l) < 0 || place_merges(l) < 0 ||
        sort_added(l) < 0)
        return -1;
    while (b->n_text && b->text[b->n_text - 1].n == 0)
        b->n_text--;
    return bpe_seal(b) ? 0 : no_memory(l);
}

static int
load(struct tokenizer *t, const char *name, struct slice text, struct err *err)
{
    struct arena arena = { 0 };
    struct loader l = { .t = t };
    l.max_id = text.n > MIN_IDS ? text.n : MIN_IDS;
    json_open(&l.j, name, 0, text, &arena, err);
    fill_alphabet(&l);
    int rc = read_file(&l) == 0 ? finish_loading(&l) : -1;
    free(l.slot);
    free(l.merge);
    free(l.added);
    buf_free(&l.scratch);
    arena_free(&arena);
    return rc;
}

/* Read all of a file; the caller frees. */
static char *
read_whole(struct map *m, const char *path, struct guard *g, struct err *err)
{
    if (foreign_path(path, FOREIGN_FOR_TOKENIZER, err) < 0 ||
        map_open(m, path, g, err) < 0)
        return NULL;
    char *text = malloc(m->size + 1);
    if (!text)
        err_fill(err, ERR_MEMORY, "%s: out of memory for %zu bytes", m->name, m->size);
    else if (map_read(m, text, m->size, 0, err) == 0)
        return text;
    free(text);
    return NULL;
}

/* What begins like no object is another file, not a damaged tokenizer.json. */
static void
refuse_other(const char *name, const char *text, size_t n, struct err *err)
{
    char q[TEXT_QUOTE];
    size_t at = 0;
    while (at < n && text[at] && strchr(" \t\r\n", text[at]))
        at++;
    if (at == n || text[at] == '{')
        return;
    *err = (struct err){ 0 };
    err_fill(err, ERR_FORMAT, "%s: byte %zu: expected a tokenizer.json, found %s", name,
             at, text_quote(q, text + at, n - at < 16 ? n - at : 16));
}

struct tokenizer *
tokenizer_open(const char *path, struct guard *g, struct err *err)
{
    struct map m = { .fd = -1 };
    struct tokenizer *t = NULL;
    int rc = -1;
    char *text = read_whole(&m, path, g, err);
    struct hash *h = text ? hash_begin(HASH_SHA256) : NULL;
    if (text && (!h || !(t = calloc(1, sizeof *t))))
        err_fill(err, ERR_MEMORY, "%s: out of memory for the tokenizer", m.name);
    if (t) {
        hash_add(h, text, m.size);
        rc = load(t, m.name, (struct slice){ text, m.size }, err);
        const char *slash = strrchr(path, '/');
        bool named = strcmp(slash ? slash + 1 : path, "tokenizer.json") == 0;
        if (rc < 0 && !named && err->kind == ERR_FORMAT &&
            foreign_part(path, FOREIGN_FOR_TOKENIZER, err) == 0)
            refuse_other(m.name, text, m.size, err);
    }
    if (h)
        hash_end(h, t ? t->sha256 : NULL);
    free(text);
    map_close(&m);
    if (rc == 0)
        return t;
    tokenizer_close(t);
    return NULL;
}

void
tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_free(&t->bpe);
    free(t->added);
    free(t);
}

void
tokenizer_sha256(const struct tokenizer *t, uint8_t digest[SHA256_BYTES])
{
    memcpy(digest, t->sha256, SHA256_BYTES);
}

uint32_t
tokenizer_vocab(const struct tokenizer *t)
{
    return (uint32_t)t->bpe.n_text;
}

uint32_t
tokenizer_added(const struct tokenizer *t, const char *text)
{
    struct added key = { .text = slice_of(text) };
    const struct added *a = NULL;
    if (t->n_added)
        a = bsearch(&key, t->added, t->n_added, sizeof *t->added, compare_added);
    return a ? a->id : TOKEN_NONE;
}

struct slice
tokenizer_bytes(const struct tokenizer *t, uint32_t id)
{
    if (id >= t->bpe.n_text || t->bpe.text[id].n == 0)
        return (struct slice){ 0 };
    return bytes_of(t, id);
}
