/* SPDX-License-Identifier: MIT */
/* quant_vectors: scales and codes of tests/vectors/nvfp4.txt, which an implementation
 * in Python made (tests/make_nvfp4_vectors.py, it tells the form), for each quantizer
 * on every path that this machine has. */
#include "lib/nvfp4/quant.h"

#include "lib/base/num.h"
#include "tests/unit/check.h"

#include <ctype.h>
#include <string.h>

#define VECTORS "tests/vectors/nvfp4.txt"

enum { MAX_BLOCKS = 256, MAX_VALUES = MAX_BLOCKS * NVFP4_BLOCK };

struct test_case {
    char name[64];
    enum dtype source;
    float amax;
    size_t rows, cols;
    size_t n; // blocks
    float x[MAX_VALUES];
};

/* The next n characters of *p as a number. */
static uint32_t
hex(const char **p, int n)
{
    char text[9] = { 0 }, *end;
    memcpy(text, *p, (size_t)n);
    unsigned long v = strtoul(text, &end, 16);
    NEED(n < 9 && end == text + n);
    *p += n;
    return (uint32_t)v;
}

static float
float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float
value(const char **p, enum dtype source)
{
    switch (source) {
    case DT_F16:
        return num_from_f16((uint16_t)hex(p, 4));
    case DT_BF16:
        return num_from_bf16((uint16_t)hex(p, 4));
    default:
        return float_of(hex(p, 8));
    }
}

/* "case NAME SOURCE AMAX ROWS COLS", without its first word. */
static void
take_case(struct test_case *t, const char *line)
{
    char source[8], amax[9];
    char rows[8], cols[8];
    uint64_t r, c;
    NEED(sscanf(line, "%63s %7s %8s %7s %7s", t->name, source, amax, rows, cols) == 5);
    NEED(num_u64(&r, rows) && num_u64(&c, cols));
    t->rows = (size_t)r;
    t->cols = (size_t)c;
    t->n = t->rows * t->cols / NVFP4_BLOCK;
    NEED(t->n > 0 && t->n <= MAX_BLOCKS && c % NVFP4_BLOCK == 0);
    const char *p = amax;
    t->amax = float_of(hex(&p, 8));
    t->source = dtype_from_name((struct slice){ .p = source, .n = strlen(source) });
    NEED(t->source == DT_F16 || t->source == DT_BF16 || t->source == DT_F32);
}

static void
take_values(struct test_case *t, const char *p)
{
    for (size_t i = 0; i < t->n * NVFP4_BLOCK; i++)
        t->x[i] = value(&p, t->source);
    NEED(*p == '\0');
}

/* "SEED:STEP:ROW:FIRST" */
static void
take_key(struct quant_spec *spec, uint64_t *first, const char *text)
{
    uint64_t *const at[] = { &(uint64_t){ 0 }, &(uint64_t){ 0 }, &(uint64_t){ 0 },
                             first };
    char copy[64], *save, *word;
    snprintf(copy, sizeof copy, "%s", text);
    word = strtok_r(copy, ":", &save);
    for (int i = 0; i < 4; i++, word = strtok_r(NULL, ":", &save))
        NEED(word && num_u64(at[i], word));
    spec->stochastic = true;
    spec->seed = (uint32_t)*at[0];
    spec->step = (uint32_t)*at[1];
    spec->row = (uint32_t)*at[2];
}

/* NAME, or NAME with settings behind commas; *first is the index of x[0]. */
static struct quant_spec
take_spec(uint64_t *first, const char *word, enum dtype source)
{
    struct quant_spec spec = { .source = source };
    char name[16];
    size_t n = strcspn(word, ",");
    const char *more = word + n;
    NEED(n < sizeof name);
    memcpy(name, word, n);
    name[n] = '\0';
    spec.kind = quant_named(name);
    NEED(spec.kind != QUANT_COUNT);
    *first = 0;
    spec.modelopt = strstr(more, ",modelopt");
    spec.mae = strstr(more, ",mae");
    spec.exhaustive = strstr(more, ",exhaustive");
    spec.square = strstr(more, ",square");
    if (strncmp(more, ",stochastic:", 12) == 0)
        take_key(&spec, first, more + 12);
    NEED(!*more || spec.modelopt || spec.mae || spec.exhaustive || spec.square ||
         spec.stochastic);
    return spec;
}

static void
show(char *out, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", p[i]);
}

static void
check_blocks(const struct test_case *t, const char *word, const char *how, size_t i,
             size_t n, const uint8_t *scales, const uint8_t *codes,
             const char *want_scales, const char *want_codes)
{
    for (; n-- > 0; i++, scales++, codes += NVFP4_BLOCK / 2) {
        const char *scale = want_scales + 2 * i, *code = want_codes + NVFP4_BLOCK * i;
        char a[3], b[NVFP4_BLOCK + 1];
        show(a, scales, 1);
        show(b, codes, NVFP4_BLOCK / 2);
        CHECK_SAY(memcmp(a, scale, 2) == 0 && memcmp(b, code, NVFP4_BLOCK) == 0,
                  "%s %s %s, %s, block %zu: %s %s, want %.2s %.16s", t->name,
                  dtype_name(t->source), word, how, i, a, b, scale, code);
    }
}

/* What a line wants; "=" keeps that of the line before. */
struct want {
    char text[65536];
    const char *scale2, *scales, *codes;
};

static void
take_want(struct want *w, const char *text, size_t n)
{
    if (strcmp(text, "=") == 0)
        return;
    char *save;
    snprintf(w->text, sizeof w->text, "%s", text);
    w->scale2 = strtok_r(w->text, " ", &save);
    w->scales = strtok_r(NULL, " ", &save);
    w->codes = strtok_r(NULL, " ", &save);
    NEED(w->scale2 && w->scales && w->codes);
    NEED(strlen(w->scales) == 2 * n && strlen(w->codes) == NVFP4_BLOCK * n);
}

/* "QUANT SCALE2 SCALES CODES" or "QUANT =" */
static void
check_quant(const struct test_case *t, char *word)
{
    static uint8_t codes[MAX_VALUES / 2], scales[MAX_BLOCKS];
    static struct want w;
    char *rest = strchr(word, ' ');
    NEED(rest);
    *rest = '\0';
    take_want(&w, rest + 1, t->n);
    uint64_t first;
    struct quant_spec spec = take_spec(&first, word, t->source);
    struct quant_scale s = nvfp4_scale(&spec, t->amax);

    const char *p = w.scale2;
    NEED((quant_levels(spec.kind) == 1) == (*p == '-'));
    float want = *p == '-' ? 1.0F : float_of(hex(&p, 8));
    CHECK_SAY(check_equal(&want, &s.scale2, sizeof want),
              "%s %s %s: scale2 %a, want %a", t->name, dtype_name(t->source), word,
              (double)s.scale2, (double)want);
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (!isa_have((enum isa)isa))
            continue;
        spec.isa = (enum isa)isa;
        nvfp4_quant(codes, scales, t->x, t->rows, t->cols, first, &spec, &s, NULL);
        check_blocks(t, word, isa_name(spec.isa), 0, t->n, scales, codes, w.scales,
                     w.codes);
        for (size_t i = 0; i < t->n && !spec.square; i++) {
            size_t at = i * NVFP4_BLOCK;
            nvfp4_quant(codes, scales, t->x + at, 1, NVFP4_BLOCK, first + at, &spec, &s,
                        NULL);
            check_blocks(t, word, "one block", i, 1, scales, codes, w.scales, w.codes);
        }
    }
}

int
main(void)
{
    static struct test_case t;
    static char line[65536];
    size_t cases = 0, checks = 0;
    FILE *f = fopen(VECTORS, "r");
    if (!f) {
        printf("%s is not here\n", VECTORS);
        return EXIT_FAILURE;
    }
    while (fgets(line, sizeof line, f)) {
        size_t n = strcspn(line, "\n");
        NEED(line[n] == '\n');
        line[n] = '\0';
        if (*line == '#')
            continue;
        if (strncmp(line, "case ", 5) == 0) {
            take_case(&t, line + 5);
            cases++;
        } else if (strncmp(line, "x ", 2) == 0) {
            take_values(&t, line + 2);
        } else {
            check_quant(&t, line);
            checks++;
        }
    }
    fclose(f);
    // Each case has each of the seven quantizers, five of them in two ways; then there
    // are square blocks: a case with seven lines, three with one; and one with three of chance.
    CHECK(cases > 50 && checks == 12 * (cases - 5) + 7 + 3 + 3);
    return check_end();
}
