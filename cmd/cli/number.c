/* SPDX-License-Identifier: MIT */
/* number: arguments of options that are numbers, see option.h. */
#include "cmd/cli/cmd.h"
#include "cmd/cli/option.h"
#include "lib/base/num.h"
#include "lib/base/par.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The forms of numbers.  A suffix is a letter that may follow. */
enum form { WHOLE, DECIMAL, WHOLE_SUFFIX, DECIMAL_SUFFIX };
static const char *const suffixes[] = {
    [WHOLE] = "", [DECIMAL] = "", [WHOLE_SUFFIX] = "KMG", [DECIMAL_SUFFIX] = "KMGT"
};

static bool
is_whole(enum form form)
{
    return form == WHOLE || form == WHOLE_SUFFIX;
}

/* Length of the decimal number that s begins with: a sign, digits, a fraction, an exponent. */
static size_t
number_length(const char *s)
{
    static const char digits[] = "0123456789";
    size_t n = *s == '-' || *s == '+', whole = strspn(s + n, digits), fraction = 0;
    n += whole;
    if (s[n] == '.') {
        fraction = strspn(s + n + 1, digits);
        n += 1 + fraction;
    }
    if (whole + fraction == 0)
        return 0;
    if (s[n] == 'e' || s[n] == 'E') {
        size_t sign = s[n + 1] == '-' || s[n + 1] == '+',
               exponent = strspn(s + n + 1 + sign, digits);
        n += exponent ? 1 + sign + exponent : 0;
    }
    return n;
}

static bool
is_not_finite(const char *arg)
{
    static const char *const words[] = { "nan", "inf", "infinity" };
    arg += *arg == '-' || *arg == '+';
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(arg, words[i]) == 0)
            return true;
    return false;
}

enum { FAULT = TEXT_QUOTE + 32 };

/* A whole number as its digits, where they show it exactly. */
static const char *
exponent_fault(char out[FAULT], double v)
{
    static const double exact = 9e15;
    if (!(v >= 1 && v <= exact) || v != floor(v))
        return "has an exponent";
    snprintf(out, FAULT, "has an exponent: written as %.0f it has none", v);
    return out;
}

/* The fault of a refused number, in words; low is the smallest allowed one. */
static const char *
fault_of(char out[FAULT], const char *arg, enum form form, double low)
{
    size_t n = number_length(arg);
    const char *rest = arg + n;
    if (!*arg)
        return "is empty";
    if (is_not_finite(arg))
        return "is not finite";
    if (n == 0)
        return "is no number";
    if (*rest && !(strchr(suffixes[form], *rest) && rest[1] == '\0')) {
        char q[TEXT_QUOTE];
        snprintf(out, FAULT, "\"%s\" after the number",
                 text_quote(q, rest, strlen(rest)));
        return out;
    }
    double v = strtod(arg, NULL);
    if (is_whole(form) && memchr(arg, '.', n))
        return v > 0 && v < 1 ? "is a share, and a count is wanted"
                              : "is no whole number";
    if (is_whole(form) && n > strspn(arg, "+-0123456789"))
        return exponent_fault(out, v);
    if (*arg == '-')
        return "is negative";
    if (is_whole(form) && *arg == '+')
        return "has a sign";
    return v < low ? "is too small" : "is too large";
}

/* The argument is misuse: say what is wrong, then what was expected. */
static _Noreturn void
refuse(const char *option, const char *arg, enum form form, double low,
       const char *want)
{
    char q[TEXT_QUOTE], fault[FAULT];
    misuse("--%s: %s: %s: want %s", option,
           *arg ? text_quote(q, arg, strlen(arg)) : "\"\"",
           fault_of(fault, arg, form, low), want);
}

uint64_t
cmd_u64(const char *option, const char *arg, uint64_t low, uint64_t high)
{
    uint64_t v;
    char want[64];
    if (num_u64(&v, arg) && v >= low && v <= high)
        return v;
    snprintf(want, sizeof want, "%llu..%llu", (unsigned long long)low,
             (unsigned long long)high);
    refuse(option, arg, WHOLE, (double)low, want);
}

unsigned
cmd_threads(const char *arg)
{
    // Each worker has megabytes of its own; beyond this number none goes faster.
    enum { MAX_USED = 32 };
    uint64_t n = arg ? cmd_u64("threads", arg, 1, 1024) : par_cpus();
    return n < MAX_USED ? (unsigned)n : MAX_USED;
}

double
cmd_number(const char *option, const char *arg, double low)
{
    double v;
    char want[64];
    if (num_double(&v, arg) && v >= low)
        return v;
    snprintf(want, sizeof want, "a number of at least %g", low);
    refuse(option, arg, DECIMAL, low, want);
}

uint64_t
cmd_gb(const char *option, const char *arg)
{
    uint64_t v;
    if (!num_gb(&v, arg))
        refuse(option, arg, DECIMAL_SUFFIX, 0,
               "a number of GB of at least 0, as 1.5, or one with K, M, G or T, as "
               "1500M");
    return v;
}

uint64_t
cmd_bytes(const char *option, const char *arg, uint64_t low)
{
    uint64_t v;
    char want[96];
    if (num_bytes(&v, arg) && v >= low && v <= INT64_MAX)
        return v;
    snprintf(want, sizeof want,
             "a number of bytes of at least %llu; K, M and G may follow it",
             (unsigned long long)low);
    refuse(option, arg, WHOLE_SUFFIX, (double)low, want);
}
