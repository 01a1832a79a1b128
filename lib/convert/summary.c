/* SPDX-License-Identifier: MIT */
/* summary: the errors of quantizing and rounding, as a table and as warnings. */
#include "lib/convert/output.h"
#include "lib/convert/produce.h"

#include <math.h>
#include <string.h>

static double
sqnr(const struct quant_error *e)
{
    return e->noise == 0 ? INFINITY : 10 * log10(e->signal / e->noise);
}

static void
put_db(struct buf *b, double db)
{
    if (isfinite(db))
        buf_printf(b, "%.4f", db);
    else
        buf_str(b, db > 0 ? "inf" : "-inf");
}

int
report_begin(const struct plan *p, struct outfile *o)
{
    const struct pack *c = p->c;
    if (strcmp(c->report, c->out) == 0)
        return err_set(p->err, ERR_USAGE, "--report %s: is the output, too", c->report);
    return beside_check(p, c->report) < 0
               ? -1
               : out_open(o, c->report, c->force ? OUT_FORCE : 0, p->c->host->guard,
                          p->err);
}

/* A line for each quantized tensor. */
int
report_write(const struct plan *p, struct outfile *o)
{
    struct buf b = { 0 };
    buf_str(&b, "name\tshape\tsqnr_db\tmse\tmax_err\tzero_scales\tsaturated_blocks\n");
    for (size_t i = 0; i < p->n_nvfp4; i++) {
        const struct nvfp4 *t = p->nvfp4[i];
        const struct item *v = &t->source;
        if (!t->quantize)
            continue;
        text_escape(&b, t->name, strlen(t->name));
        buf_printf(&b, "\t%llux%llu\t", (unsigned long long)v->shape[0],
                   (unsigned long long)v->shape[1]);
        put_db(&b, sqnr(&t->error));
        buf_printf(&b, "\t%.9g\t%.9g\t%llu\t%llu\n",
                   v->numel ? t->error.noise / (double)v->numel : 0.0,
                   (double)t->error.max, (unsigned long long)t->error.zero_scales,
                   (unsigned long long)t->error.saturated);
    }
    int rc = buf_ok(&b, p->err);
    if (rc == 0)
        rc = out_write(o, b.data, b.len);
    buf_free(&b);
    return rc == 0 ? out_commit(o) : -1;
}

/* How many tensors were quantized, their mean SQNR, and the worst. */
void
report_summary(const struct plan *p)
{
    const struct nvfp4 *worst = NULL;
    double sum = 0;
    size_t n = 0, measured = 0;
    uint64_t saturated = 0;
    char q[TEXT_QUOTE];
    const struct host *host = p->c->host;
    for (size_t i = 0; i < p->n_nvfp4; i++) {
        const struct nvfp4 *t = p->nvfp4[i];
        double db = sqnr(&t->error);
        n += t->quantize;
        saturated += t->quantize ? t->error.saturated : 0;
        if (!t->quantize || !isfinite(db))
            continue;
        measured++;
        sum += db;
        if (!worst || db < sqnr(&worst->error))
            worst = t;
    }
    if (n == 0) {
        if (p->c->quantize)
            host_note(
                host,
                "%s: nothing was quantized: the selected tensors are NVFP4 already, or "
                "none is a matrix that is quantized; -s selects others",
                p->c->out);
        return;
    }
    const char *plural = n == 1 ? "" : "s";
    if (!worst)
        host_note(host, "%s: %zu tensor%s by %s, without error", p->c->out, n, plural,
                  p->c->quant);
    else
        host_note(host, "%s: %zu tensor%s by %s: mean %.2f dB, worst %.2f dB \"%s\"",
                  p->c->out, n, plural, p->c->quant, sum / (double)measured,
                  sqnr(&worst->error), text_quote(q, worst->name, strlen(worst->name)));
    if (saturated)
        host_note(host, "%s: %llu blocks need a scale above 448 and are clipped",
                  p->c->out, (unsigned long long)saturated);
    if (p->requantizes)
        host_note(
            host,
            "%s: what was NVFP4 before was quantized again, from its rounded values",
            p->c->out);
}

/* How many values underflowed, and where most of them are. */
void
report_lost(const struct plan *p)
{
    const struct lost *l = &p->lost;
    char q[TEXT_QUOTE];
    if (l->under == 0)
        return;
    host_note(p->c->host,
              "%s: %llu value%s underflowed in %s, %llu of them to 0, most in \"%s\" "
              "(%llu)%s",
              p->c->out, (unsigned long long)l->under, l->under == 1 ? "" : "s",
              l->mixed ? "narrower types" : dtype_name(l->dtype),
              (unsigned long long)l->zero, text_quote(q, l->worst, strlen(l->worst)),
              (unsigned long long)l->max, range_way_out(p, l->dtype, 0));
}
