/* SPDX-License-Identifier: MIT */
/* pack: see pack.h. */
#include "lib/convert/output.h"

#include <assert.h>
#include <string.h>

int
pack_run(struct pack *c, char **paths, size_t n, struct err *err)
{
    struct plan p;
    struct outfile report = { 0 };
    bool training = writer_traits(c->to)->training;
    assert(c->out);
    if (training && !c->master)
        c->master = c->torchsharp ? "nvfp4" : "bf16";
    if (training && !c->moments)
        c->moments = "int8";
    int rc = plan_open(&p, c, paths, n, err);
    if (rc == 0)
        rc = beside_find_tokenizer(&p);
    if (rc == 0)
        rc = beside_check_output(&p);
    if (rc == 0 && c->report)
        rc = report_begin(&p, &report);
    if (rc == 0)
        rc = output_write(&p);
    if (rc == 0 && c->report)
        rc = report_write(&p, &report);
    if (rc < 0 && report.err) // begun
        out_abandon(&report);
    if (rc == 0) {
        report_merged(&p);
        report_summary(&p);
        report_lost(&p);
        beside_report(&p);
    }
    if (rc == 0 && c->host->verbose)
        host_note(c->host, "%s: %s, %zu tensors", c->out, c->to, p.n);
    plan_close(&p);
    return rc;
}
