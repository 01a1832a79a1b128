/* SPDX-License-Identifier: MIT */
/* record: see record.h. */
#include "lib/train/record.h"

#include "lib/base/json.h"
#include "lib/base/num.h"
#include "lib/format/history.h"
#include "lib/format/provenance.h"

#include <stdlib.h>

/* ---- provenance ----------------------------------------------------------------------------- */

/* The checkpoint that a training begins with. */
static int
put_origin(struct store *in, struct buf *b, struct err *err)
{
    uint8_t xxh3[XXH3_BYTES];
    if (store_content_hash(in, xxh3, 1, err) < 0)
        return -1;
    provenance_input(b, slice_of("ckpt"), in->provenance, 1, xxh3);
    return 0;
}

int
record_origin(struct store *in, struct buf *b, struct err *err)
{
    struct history h;
    int rc = history_read(&h, in->provenance, err);
    if (rc == 0)
        rc = put_origin(in, b, err);
    else if (rc > 0)
        buf_add(b, h.inputs.p, h.inputs.n);
    history_free(&h);
    if (rc >= 0 && b->failed)
        rc = err_set(err, ERR_MEMORY, "out of memory for the provenance");
    return rc < 0 ? -1 : 0;
}

/* What the steps of this run had in common, as JSON. */
struct common {
    struct buf data, route, settings;
};

static void
put_common(struct common *c, const struct trainer *t)
{
    const struct settings_hash hashes[] = {
        { "teacher", t->st.has_teacher ? t->st.teacher : NULL },
        { "teacher_data", t->st.has_teacher_data ? t->st.teacher_data : NULL },
    };
    tok_put_provenance(&c->data, &t->in->data.tok);
    json_put(&c->route, slice_of(t->st.route));
    settings_json(&c->settings, &t->run->s, hashes, sizeof hashes / sizeof *hashes);
}

static void
free_common(struct common *c)
{
    buf_free(&c->data);
    buf_free(&c->route);
    buf_free(&c->settings);
}

static int
put_provenance(const struct trainer *t, struct buf *b, uint64_t step)
{
    struct history h;
    struct store *file = &t->in->file;
    struct common c = { 0 };
    struct buf origin = { 0 };
    int rc = history_read(&h, file->provenance, t->err);
    put_common(&c, t);
    if (rc == 0) {
        rc = put_origin(file, &origin, t->err);
        h.inputs = (struct slice){ origin.data, origin.len };
    }
    const struct history_span span = { t->run->in_step + 1,
                                       step,
                                       { c.data.data, c.data.len },
                                       { c.route.data, c.route.len },
                                       { c.settings.data, c.settings.len } };
    if (rc >= 0)
        rc = history_add(&h, &span, t->err);
    if (rc >= 0)
        history_put(b, &h, t->run->host->version);
    if (rc >= 0 && (b->failed || c.data.failed || c.route.failed || c.settings.failed ||
                    origin.failed))
        rc = err_set(t->err, ERR_MEMORY, "out of memory for the provenance");
    buf_free(&origin);
    history_free(&h);
    free_common(&c);
    return rc < 0 ? -1 : 0;
}

/* ---- state ---------------------------------------------------------------------------------- */

/* The magnitudes of delayed scales, or zeros of as many bytes. */
static int
note_scales(struct trainer *t, bool zeros, struct slice *scales)
{
    const struct net_delayed *d = t->train.net.delayed;
    size_t n = d ? train_n_magnitudes(&t->train) : 0, bytes = n * sizeof(float);
    bool some = zeros;
    if (n && !t->fp8_amax)
        t->fp8_amax = calloc(bytes, 1);
    if (n && !t->fp8_amax)
        return err_set(t->err, ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < n; i++) {
        some |= d->magnitude[i] > 0;
        store_le32(t->fp8_amax + i * sizeof(float),
                   zeros ? 0 : num_bits_f32(d->magnitude[i]));
    }
    *scales = (struct slice){ t->fp8_amax, some ? bytes : 0 };
    return 0;
}

int
record_note(struct trainer *t)
{
    t->st.step = t->train.step;
    t->st.t = t->train.t;
    t->st.grad_norm = t->train.last_norm;
    t->st.epoch = t->in->data.epoch;
    t->st.index = t->in->data.index;
    return note_scales(t, false, &t->st.fp8_amax);
}

int
record_largest(struct trainer *t, struct state *st)
{
    *st = t->st;
    st->step = st->t = st->skips = t->run->end;
    st->epoch = st->index = UINT64_MAX;
    st->grad_norm = 0;
    st->has_spike = t->run->s.spike > 0;
    st->spike = (struct spike){ .n = SPIKE_WINDOW };
    return note_scales(t, true, &st->fp8_amax);
}

/* ---- both ----------------------------------------------------------------------------------- */

static int
describe(const struct trainer *t, const struct state *st, struct buf *provenance,
         struct buf *state)
{
    if (put_provenance(t, provenance, st->step) < 0)
        return -1;
    state_put(state, st, &t->run->s);
    return state->failed ? err_set(t->err, ERR_MEMORY, "out of memory for the state")
                         : 0;
}

int
record_describe(struct trainer *t, struct buf *provenance, struct buf *state)
{
    return record_note(t) < 0 ? -1 : describe(t, &t->st, provenance, state);
}

int
record_meta(const struct trainer *t, const struct state *st, struct wmeta *m,
            struct buf *provenance, struct buf *state)
{
    const struct store *file = &t->in->file;
    if (describe(t, st, provenance, state) < 0)
        return -1;
    *m = (struct wmeta){ .config = file->config,
                         .provenance = { provenance->data, provenance->len },
                         .version = t->run->host->version,
                         .master = file->training.master,
                         .moments = file->training.moments,
                         .quant = file->quant.name,
                         .variant = file->quant.variant,
                         .criterion = file->quant.criterion,
                         .share = file->quant.share,
                         .state = { state->data, state->len } };
    return 0;
}
