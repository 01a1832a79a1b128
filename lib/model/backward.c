/* SPDX-License-Identifier: MIT */
/* backward: gradients, from the last norm's result to the embedding.  A weight is not read
 * after its gradient is complete: it may then be updated. */
#include "lib/model/pass.h"

#include <assert.h>

void
pass_begin(struct pass *p, enum role role, int layer)
{
    struct net *n = p->n;
    const struct net_tensor *t = pass_tensor(p, role, layer);
    if (n->begin && t->grad.data)
        n->begin(n->ctx, (size_t)(t - n->t));
}

void
pass_done(struct pass *p, enum role role, int layer)
{
    struct net *n = p->n;
    const struct net_tensor *t = pass_tensor(p, role, layer);
    if (n->done && t->grad.data)
        n->done(n->ctx, (size_t)(t - n->t));
}

/* What the forward product of that role was given for x: x, or in `buffer`, which may be x's
 * own, the values of its nvfp4 form; or its FP8 form. */
static struct matrix
seen_input(struct pass *p, void *buffer, const void *x, enum role role, int layer)
{
    size_t cols = pass_tensor(p, role, layer)->w.cols;
    struct matrix in = pass_act(p, x, cols), to = pass_act(p, buffer, cols);
    if (pass_is_fp8(p, role, layer))
        return *pass_input_again(p, &in, role, layer);
    if (!pass_quantizes(p))
        return in;
    op_convert(p->k, &to, pass_input(p, &in, role, layer));
    return to;
}

/* What the products of n weights that share an input are given for dy, (T, sum of their rows),
 * until the next call. */
static struct matrix
gradient_of(struct pass *p, size_t n, const void *dy, const enum role *role, int layer)
{
    size_t rows = 0;
    for (size_t i = 0; i < n; i++)
        rows += pass_tensor(p, role[i], layer)->w.rows;
    struct matrix from = pass_act(p, dy, rows);
    return *pass_gradient(p, &from, role[0], layer);
}

/* dx of n weights that share an input. */
static void
linears_dx(struct pass *p, size_t n, void *dx, const struct matrix *dy,
           const enum role *role, int layer)
{
    struct matrix w[LINEAR_MAX];
    pass_weights(p, w, n, role, layer, true);
    struct matrix to = pass_act(p, dx, w->cols);
    op_linear_dx(p->k, n, &to, dy, w, NULL);
}

/* The gradients of n weights that share x. */
static void
linears_dw(struct pass *p, size_t n, const struct matrix *dy, const struct matrix *x,
           const enum role *role, int layer)
{
    struct matrix dw[LINEAR_MAX];
    bool wanted = true;
    for (size_t i = 0; i < n; i++) {
        dw[i] = pass_tensor(p, role[i], layer)->grad;
        wanted = wanted && dw[i].data;
    }
    pass_begin(p, role[0], layer);
    if (wanted)
        op_linear_dw(p->k, n, dw, dy, x, false);
    for (size_t i = 0; i < n; i++)
        pass_done(p, role[i], layer);
}

/* The gradient of a norm's gain, which the device adds to: from zero. */
static float *
gain_grad(struct pass *p, enum role role, int layer)
{
    const struct net_tensor *t = pass_tensor(p, role, layer);
    pass_begin(p, role, layer);
    if (t->grad.data)
        op_zero(p->k, t->grad.data, t->w.cols * sizeof(float));
    return t->grad.data;
}

/* Where the largest magnitude of a norm's dx goes: of what comes before the norm it is the
 * gradient. */
static float *
amax_below(const struct pass *p, enum role norm, int layer)
{
    if (norm == ROLE_POST_NORM)
        return pass_amax(p, ROLE_O, layer, true);
    int below = norm == ROLE_FINAL_NORM ? (int)p->c->layers - 1 : layer - 1;
    return below < (int)p->n->frozen ? NULL : pass_amax(p, ROLE_DOWN, below, true);
}

/* dx = ... + c; y: NULL, or where the norm's result is written again. */
static void
norm_bwd(struct pass *p, enum role role, int layer, void *dx, void *y, const void *dy,
         const void *x, const float *rstd, const void *c)
{
    const struct net_tensor *t = pass_tensor(p, role, layer);
    size_t hidden = p->c->hidden;
    struct matrix to = pass_act(p, dx, hidden), again = pass_act(p, y, hidden),
                  from = pass_act(p, dy, hidden), in = pass_act(p, x, hidden),
                  add = pass_act(p, c, hidden);
    to.amax = amax_below(p, role, layer);
    op_norm_bwd(p->k, &to, gain_grad(p, role, layer), y ? &again : NULL, &from, &in,
                rstd, t->w.data, c ? &add : NULL);
    pass_done(p, role, layer);
}

/* The same of a norm inside a layer, dx = dx + ..., and what its result was to the projections
 * of `role`; there: it is in p->norm, unless these are of FP8. */
static struct matrix
layer_norm_bwd(struct pass *p, enum role norm, enum role role, int layer, bool there,
               void *dx, const void *dy, const void *x, const float *rstd)
{
    struct matrix in = pass_act(p, x, p->c->hidden);
    struct pass_fp8 o;
    if (!pass_is_fp8(p, role, layer)) {
        norm_bwd(p, norm, layer, dx, there ? NULL : p->norm, dy, x, rstd, dx);
        return seen_input(p, p->norm, p->norm, role, layer);
    }
    pass_fp8_input(p, &o, role, layer, true);
    op_norm_again_to_fp8(p->k, o.to, rstd, &in, pass_tensor(p, norm, layer)->w.data,
                         o.amax, NULL); // before the gain may be updated
    norm_bwd(p, norm, layer, dx, NULL, dy, x, rstd, dx);
    return *o.to;
}

/* d: columns of dqkv. */
static void
qk_norm_rope_bwd(struct pass *p, const struct matrix *d, const void *x,
                 const float *rstd, enum role role, int layer, size_t heads)
{
    const struct net_tensor *t = pass_tensor(p, role, layer);
    struct rope r = pass_rope(p, heads);
    struct matrix in = pass_act(p, x, d->cols);
    op_qk_norm_rope_bwd(p->k, d, gain_grad(p, role, layer), &in, rstd, t->w.data, &r);
    pass_done(p, role, layer);
}

/* From d, the gradient of what swiglu gives, to that of gate and up, and to what swiglu gives, x,
 * both in the form that products take. */
static struct matrix
swiglu_bwd(struct pass *p, struct matrix *x, const struct matrix *d, int i)
{
    const struct layer_acts *l = &p->layer[i];
    struct matrix gate = pass_act(p, l->gate, d->cols),
                  up = pass_act(p, l->up, d->cols),
                  both = pass_act(p, p->d_gate_up, 2 * d->cols);
    bool fp8 = pass_is_fp8(p, ROLE_GATE, i);
    struct pass_fp8 o, y;
    assert(fp8 == pass_is_fp8(p, ROLE_DOWN, i)); // they have the same sizes
    both.amax = pass_amax(p, ROLE_GATE, i, true);
    both.data = fp8 ? NULL : both.data;
    if (both.data || both.amax)
        op_swiglu_bwd(p->k, &both, d, &gate, &up);
    if (!fp8) {
        *x = seen_input(p, d->data, d->data, ROLE_DOWN, i);
        return both;
    }
    pass_fp8_d_gate_up(p, &o, i);
    pass_fp8_input(p, &y, ROLE_DOWN, i, true);
    op_swiglu_bwd_to_fp8(p->k, o.to, o.amax, o.found, y.to, y.amax, d, &gate, &up);
    *x = *y.to;
    return *o.to;
}

/* From dh, the gradient of the layer's output, to that of mid. */
static void
feed_forward_bwd(struct pass *p, int i)
{
    struct layer_acts *l = &p->layer[i];
    const enum role down = ROLE_DOWN, gate_up[] = { ROLE_GATE, ROLE_UP };
    struct matrix d = pass_act(p, p->dact, p->c->ffn), both, dy, x;
    dy = gradient_of(p, 1, p->dh, &down, i);
    linears_dx(p, 1, p->dact, &dy, &down, i);
    both = swiglu_bwd(p, &x, &d, i);
    linears_dw(p, 1, &dy, &x, &down, i);
    linears_dx(p, 2, p->dn, &both, gate_up, i);
    // Recomputing ended with this norm, so its result is there.
    x = layer_norm_bwd(p, ROLE_POST_NORM, ROLE_GATE, i, p->n->recompute, p->dh, p->dn,
                       l->mid, l->rstd_mid);
    linears_dw(p, 2, &both, &x, gate_up, i);
}

/* From dh, the gradient of mid, to that of the layer's input. */
static void
attention_bwd(struct pass *p, int i)
{
    const struct config *c = p->c;
    struct layer_acts *l = &p->layer[i];
    const enum role o = ROLE_O, qkv[] = { ROLE_Q, ROLE_K, ROLE_V };
    size_t q = (size_t)c->heads * c->head_dim, kv = (size_t)c->kv_heads * c->head_dim;
    struct matrix x =
        seen_input(p, p->dqkv, l->att, ROLE_O, i); // dqkv is not yet in use
    struct matrix dy = gradient_of(p, 1, p->dh, &o, i);
    linears_dx(p, 1, p->datt, &dy, &o, i);
    linears_dw(p, 1, &dy, &x, &o, i);
    struct matrix all = pass_act(p, p->dqkv, q + 2 * kv), dq = matrix_cols(&all, 0, q),
                  dk = matrix_cols(&all, q, kv), dv = matrix_cols(&all, q + kv, kv);
    struct matrix dout = pass_act(p, p->datt, q), out = pass_act(p, l->att, q),
                  query = pass_act(p, l->q, q), key = pass_act(p, l->key, kv),
                  value = pass_act(p, l->value, kv);
    pass_rotate_again(p, i);
    struct matrix q_linear = pass_act(p, l->q_linear, q);
    struct rope r = pass_rope(p, c->heads);
    struct head_norm n = { gain_grad(p, ROLE_Q_NORM, i), &q_linear, l->rstd_q,
                           pass_tensor(p, ROLE_Q_NORM, i)->w.data, &r };
    op_attention_rope_bwd(p->k, &dq, &dk, &dv, &dout, &out, l->lse, &query, &key,
                          &value, p->delta, &p->heads, &n);
    pass_done(p, ROLE_Q_NORM, i);
    qk_norm_rope_bwd(p, &dk, l->k_linear, l->rstd_k, ROLE_K_NORM, i, c->kv_heads);
    dy = gradient_of(p, 3, p->dqkv, qkv, i);
    linears_dx(p, 3, p->dn, &dy, qkv, i);
    x = layer_norm_bwd(p, ROLE_INPUT_NORM, ROLE_Q, i, false, p->dh, p->dn, l->input,
                       l->rstd_input);
    linears_dw(p, 3, &dy, &x, qkv, i);
}

void
pass_backward(struct pass *p)
{
    const struct net_tensor *embed = pass_tensor(p, ROLE_EMBED, -1);
    norm_bwd(p, ROLE_FINAL_NORM, -1, p->dh, NULL, p->dn, p->out, p->rstd_top, NULL);
    for (int i = (int)p->c->layers - 1; i >= (int)p->n->frozen; i--) {
        p->repeated = true;
        if (p->n->recompute)
            pass_layer_to_gate_up(p, i, p->layer[i].key, p->layer[i].value);
        p->repeated = false;
        feed_forward_bwd(p, i);
        attention_bwd(p, i);
    }
    if (embed->grad.data) {
        struct matrix dy = pass_act(p, p->dh, p->c->hidden);
        op_embed_dw(p->k, &embed->grad, &dy, p->ids);
        pass_done(p, ROLE_EMBED, -1);
    }
}
