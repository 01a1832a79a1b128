/* SPDX-License-Identifier: MIT */
/* num: conversions of half precision and bfloat16, strict parsing, products.
 *
 * The oracle of the conversions counts in units of the last place with doubles and lets
 * the FPU round.  Rounding changes at the midpoints between neighbours and nowhere
 * else, so all of them with their neighbours are tried.  "num all" tries every float
 * (two minutes). */
#include "lib/base/num.h"

#include "tests/unit/check.h"

#include <math.h>

/* A format of 16 bits: bits of its mantissa, least exponent of a normal number. */
struct half {
    const char *name;
    int man, emin;
    float (*from)(uint16_t);
    uint16_t (*to)(float);
};

static float
from_bf16(uint16_t bits)
{
    return num_from_bf16(bits);
}

static const struct half halves[] = {
    { "f16", 10, -14, num_from_f16, num_to_f16 },
    { "bf16", 7, -126, from_bf16, num_to_bf16 },
};

static uint32_t
bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float
float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t
infinity_of(const struct half *h)
{
    return (uint16_t)(0x8000 - (1 << h->man));
}

/* The value of the bits, by the definition of a binary format; not for NaN. */
static double
value(const struct half *h, uint16_t bits)
{
    int exp = (bits & 0x7fff) >> h->man;
    int man = bits & ((1 << h->man) - 1);
    double v;
    if ((bits & 0x7fff) == infinity_of(h))
        v = INFINITY;
    else if (exp)
        v = ldexp(man + (1 << h->man), exp - 1 + h->emin - h->man);
    else
        v = ldexp(man, h->emin - h->man);
    return bits & 0x8000 ? -v : v;
}

/* x is q units of the last place; the code counts units through all binades. */
static uint16_t
rounded(const struct half *h, float x)
{
    int sign = signbit(x) ? 0x8000 : 0;
    double a = fabs((double)x);
    if (isinf(a))
        return (uint16_t)(sign | infinity_of(h));
    int exp = a > 0 && ilogb(a) > h->emin ? ilogb(a) : h->emin;
    double q = nearbyint(ldexp(a, h->man - exp)) + ldexp(exp - h->emin, h->man);
    return (uint16_t)(sign | (q < infinity_of(h) ? (int)q : infinity_of(h)));
}

static void
check_to(const struct half *h, float x)
{
    uint16_t found = h->to(x);
    if (isnan(x)) {
        uint32_t u = bits_of(x);
        int exp = 15 - h->man;
        uint16_t want =
            (uint16_t)((u >> 16 & 0x8000) | infinity_of(h) | 1U << (h->man - 1) |
                       (u >> (8 + exp) & ((1U << h->man) - 1)));
        CHECK_SAY(found == want, "%s of NaN %08x: expected %04x, found %04x", h->name,
                  u, want, found);
        return;
    }
    uint16_t want = rounded(h, x);
    CHECK_SAY(found == want, "%s of %a: expected %04x, found %04x", h->name, (double)x,
              want, found);
}

static void
check_around(const struct half *h, float x)
{
    check_to(h, x);
    check_to(h, nextafterf(x, INFINITY));
    check_to(h, nextafterf(x, -INFINITY));
}

static void
check_half(const struct half *h)
{
    for (uint32_t i = 0; i < 0x10000; i++) {
        uint16_t bits = (uint16_t)i;
        float f = h->from(bits);
        if ((bits & 0x7fff) > infinity_of(h)) {
            uint32_t want = (uint32_t)(bits & 0x8000) << 16 | 0x7f800000 |
                            (uint32_t)(bits & ((1 << h->man) - 1)) << (23 - h->man);
            CHECK_SAY(bits_of(f) == want, "%s NaN %04x: expected %08x, found %08x",
                      h->name, bits, want, bits_of(f));
            check_to(h, f);
            continue;
        }
        double v = value(h, bits);
        CHECK_SAY((double)f == v && !signbit(f) == !(bits & 0x8000),
                  "%s %04x: expected %a, found %a", h->name, bits, v, (double)f);
        CHECK_SAY(h->to(f) == bits, "%s %04x there and back: %04x", h->name, bits,
                  h->to(f));
        check_around(h, f);
        if ((bits & 0x7fff) < infinity_of(h)) // what would come above the last one, too
            check_around(h, (float)((v + value(h, (uint16_t)(bits - 1))) / 2));
    }
    float top = (float)value(h, (uint16_t)(infinity_of(h) - 1));
    float below = (float)value(h, (uint16_t)(infinity_of(h) - 2));
    check_around(h, top + (top - below) / 2);
    for (uint64_t u = 0; u < 1ULL << 32; u += 40009)
        check_to(h, float_of((uint32_t)u));
}

/* Cases of a parser: NULL ends; a text with `bad` must be refused. */
static void
check_u64(void)
{
    static const struct {
        const char *text;
        uint64_t want;
    } good[] = {
        { "0", 0 },
        { "7", 7 },
        { "00012", 12 },
        { "18446744073709551615", UINT64_MAX },
        { "0000000000000000000000000000000000000000000000001", 1 },
    };
    static const char *const bad[] = {
        "",
        " ",
        " 1",
        "1 ",
        "\t1",
        "1\n",
        "+1",
        "-1",
        "-0",
        "0x10",
        "1e3",
        "1.0",
        "1,0",
        "1_000",
        "abc",
        "18446744073709551616",
        "1a",
        "a1",
        "--1",
        "1-",
        "K",
        "1K",
        "٣",
        "99999999999999999999",
        "340282366920938463463374607431768211456",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 1234567;
        CHECK_SAY(num_u64(&v, good[i].text) && v == good[i].want, "num_u64 of \"%s\"",
                  good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t v = 1234567;
        CHECK_SAY(!num_u64(&v, bad[i]) && v == 1234567, "num_u64 takes \"%s\"", bad[i]);
    }
}

static void
check_double(void)
{
    static const struct {
        const char *text;
        double want;
    } good[] = {
        { "0", 0 },
        { "1.5", 1.5 },
        { ".5", .5 },
        { "5.", 5 },
        { "1e-5", 1e-5 },
        { "1E+5", 1e5 },
        { "1.7976931348623157e308", 0x1.fffffffffffffp1023 },
        { "4.9406564584124654e-324", 0x1p-1074 },
        { "1e-400", 0 },
        { "0.1", 0.1 },
    };
    static const char *const bad[] = {
        "",      " ",        " 1",    "1 ",
        "nan",   "NaN",      "inf",   "infinity",
        "0x1p3", "0x10",     "1e400", "1e",
        "e5",    ".",        "e",     "+",
        "-",     "--1",      "1-1",   "1e+",
        "1e5.5", "1.5.5",    "1,5",   "1f",
        "1_0",   "-inf",     "1e309", "++1",
        "-e5",   "nan(0x1)", "1e5e5", "1.7976931348623159e308",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        double v = 1234567;
        CHECK_SAY(num_double(&v, good[i].text) && v == good[i].want,
                  "num_double of \"%s\": %a", good[i].text, v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double v = 1234567;
        CHECK_SAY(!num_double(&v, bad[i]) && v == 1234567, "num_double takes \"%s\"",
                  bad[i]);
    }
}

static void
check_bytes(void)
{
    static const struct {
        const char *text;
        uint64_t want;
    } good[] = {
        { "0", 0 },
        { "0G", 0 },
        { "1", 1 },
        { "1K", 1024 },
        { "3M", 3 << 20 },
        { "16G", 16ULL << 30 },
        { "18446744073709551615", UINT64_MAX },
        { "18014398509481983K", UINT64_MAX - 1023 },
        { "17592186044415M", UINT64_MAX - 1048575 },
        { "17179869183G", UINT64_MAX - 1073741823 },
    };
    static const char *const bad[] = {
        "",
        "K",
        "M",
        "G",
        " 1K",
        "1 K",
        "1K ",
        "1k",
        "1g",
        "1T",
        "1B",
        "1KB",
        "1Ki",
        "-1K",
        "+1K",
        "1.5G",
        "0x1K",
        "1KK",
        "18014398509481984K",
        "17592186044416M",
        "17179869184G",
        "18446744073709551616",
        "99999999999999999999G",
        "1e3K",
        "11111111111111111111111111111111111111111111111111111111111111111111111111",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 1234567;
        CHECK_SAY(num_bytes(&v, good[i].text) && v == good[i].want,
                  "num_bytes of \"%s\": %llu", good[i].text, (unsigned long long)v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t v = 1234567;
        CHECK_SAY(!num_bytes(&v, bad[i]) && v == 1234567, "num_bytes takes \"%s\"",
                  bad[i]);
    }
}

static void
check_gb(void)
{
    static const struct {
        const char *text;
        uint64_t want;
    } good[] = {
        { "0", 0 },
        { "0G", 0 },
        { "1", 1 << 30 },
        { "1.5", 3ULL << 29 },
        { "1.5G", 3ULL << 29 },
        { "1536M", 3ULL << 29 },
        { ".5K", 512 },
        { "1T", 1ULL << 40 },
        { "1e-3M", 1048 },
        { "1e-20", 1 },
        { "1e30", 1ULL << 62 },
    };
    static const char *const bad[] = {
        "",
        "G",
        "-1",
        "1GB",
        "1g",
        "1 G",
        "G1",
        "nan",
        "inf",
        "1e",
        "0x1G",
        "1.5.5",
        "11111111111111111111111111111111111111111111111111111111111111111111111111",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 1234567;
        CHECK_SAY(num_gb(&v, good[i].text) && v == good[i].want,
                  "num_gb of \"%s\": %llu", good[i].text, (unsigned long long)v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t v = 1234567;
        CHECK_SAY(!num_gb(&v, bad[i]) && v == 1234567, "num_gb takes \"%s\"", bad[i]);
    }
}

static void
check_small(void)
{
    uint8_t b[9] = { 0, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef };
    uint8_t out[9] = { 0 };
    uint64_t v;
    CHECK(load_le16(b + 1) == 0x2301);
    CHECK(load_le32(b + 1) == 0x67452301);
    CHECK(load_le64(b + 1) == 0xefcdab8967452301);
    store_le64(out + 1, 0xefcdab8967452301);
    CHECK(memcmp(out, b, sizeof b) == 0);
    store_le32(out + 1, 0x01020304);
    CHECK(load_le64(out + 1) == 0xefcdab8901020304);
    store_le16(out + 1, 0x0506);
    CHECK(load_le32(out + 1) == 0x01020506);

    CHECK(mul_fits(&v, 0, UINT64_MAX, 0) && v == 0);
    CHECK(mul_fits(&v, 1ULL << 31, 1ULL << 31, INT64_MAX) && v == 1ULL << 62);
    CHECK(!mul_fits(&v, 1ULL << 32, 1ULL << 31, INT64_MAX));
    CHECK(!mul_fits(&v, 1ULL << 32, 1ULL << 32, UINT64_MAX));
    CHECK(mul_fits(&v, UINT64_MAX, 1, UINT64_MAX));
    CHECK(add_fits(&v, INT64_MAX, 0, INT64_MAX));
    CHECK(!add_fits(&v, INT64_MAX, 1, INT64_MAX));
    CHECK(!add_fits(&v, UINT64_MAX, 1, UINT64_MAX));
    CHECK(round_up(0, 4096) == 0);
    CHECK(round_up(1, 4096) == 4096);
    CHECK(round_up(4096, 4096) == 4096);
    CHECK(round_up(4097, 4096) == 8192);
}

int
main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        check_half(&halves[i]);
        for (uint64_t u = 0; argc > 1 && strcmp(argv[1], "all") == 0 && u < 1ULL << 32;
             u++)
            check_to(&halves[i], float_of((uint32_t)u));
    }
    check_u64();
    check_double();
    check_bytes();
    check_gb();
    check_small();
    return check_end();
}
