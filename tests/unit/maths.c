/* SPDX-License-Identifier: MIT */
/* maths: against libm, over the ranges that are promised. */
#include "lib/base/maths.h"

#include "tests/unit/check.h"

#include <math.h>
#include <string.h>

enum { COUNT = 200000 };

static double
uniform(uint64_t i, double low, double high)
{
    return low + (high - low) * (check_random(i) + check_random(i + COUNT) * 0x1p-32) *
                     0x1p-32;
}

/* Many at once have the bits of one, on every path of this machine. */
static void
check_many(maths_shares_fn *shares)
{
    enum { MANY = 1001 };
    static const double temperature[] = { 1, 0.5, 3 };
    float x[MANY];
    double y[MANY];
    for (size_t i = 0; i < MANY; i++)
        x[i] = (float)uniform(i, -700, 0) / (i % 3 ? 1 : 1000);
    for (size_t n = 0, t = 0; n < MANY; n = 2 * n + 1, t = (t + 1) % 3) {
        memset(y, 0, sizeof y);
        shares(y, x, n, 0.25, temperature[t]);
        for (size_t i = 0; i < MANY; i++) {
            double z = ((double)x[i] - 0.25) / temperature[t];
            CHECK(y[i] == (i < n && z > -690 ? maths_exp(z) : 0));
        }
    }
}

int
main(void)
{
    double worst[4] = { 0 };
    for (uint64_t i = 0; i < COUNT; i++) {
        double s, c, x = uniform(i, -700, 700);
        if (i % 2)
            x /= 1000;
        worst[0] = fmax(worst[0], fabs(maths_exp(x) / exp(x) - 1));
        double y = exp(uniform(i, -100, 100) / (i % 3 ? 1 : 1000));
        worst[1] =
            fmax(worst[1], fabs(maths_log(y) - log(y)) / fmax(fabs(log(y)), 1e-3));
        double z = uniform(i, -1, 1) * (i % 2 ? 262144 : i % 4 ? 16777215 : 4);
        maths_sincos(z, &s, &c);
        worst[2] = fmax(worst[2], fabs(s - sin(z)));
        worst[3] = fmax(worst[3], fabs(c - cos(z)));
    }
    CHECK_SAY(worst[0] < 6e-16, "exp: %g", worst[0]);
    CHECK_SAY(worst[1] < 6e-16, "log: %g", worst[1]);
    CHECK_SAY(worst[2] < 4e-16, "sin: %g", worst[2]);
    CHECK_SAY(worst[3] < 4e-16, "cos: %g", worst[3]);
    CHECK(maths_exp(0) == 1 && maths_log(1) == 0);
    check_many(maths_shares);
    check_many(maths_shares_scalar);
#if defined __x86_64__
    if (isa_have(ISA_AVX2))
        check_many(maths_shares_avx2);
    if (isa_have(ISA_AVX512))
        check_many(maths_shares_avx512);
#elif defined __aarch64__
    check_many(maths_shares_neon);
#endif
    printf("exp %g, log %g, sin %g, cos %g\n", worst[0], worst[1], worst[2], worst[3]);
    return check_end();
}
