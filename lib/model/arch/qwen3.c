/* SPDX-License-Identifier: MIT */
/* qwen3: the dense Qwen3 models. */
#include "lib/model/arch/list.h"

#define GGUF "qwen3"

static const struct arch_row rows[] = {
    ARCH_EMBED_ROW,
    ARCH_PROJECTION(ROLE_Q, "self_attn.q_proj", "attn_q", 'Q', 'C'),
    ARCH_PROJECTION(ROLE_K, "self_attn.k_proj", "attn_k", 'K', 'C'),
    ARCH_PROJECTION(ROLE_V, "self_attn.v_proj", "attn_v", 'K', 'C'),
    ARCH_PROJECTION(ROLE_O, "self_attn.o_proj", "attn_output", 'C', 'Q'),
    ARCH_NORM(ROLE_Q_NORM, "self_attn.q_norm", "attn_q_norm", 'D'),
    ARCH_NORM(ROLE_K_NORM, "self_attn.k_norm", "attn_k_norm", 'D'),
    ARCH_PROJECTION(ROLE_GATE, "mlp.gate_proj", "ffn_gate", 'F', 'C'),
    ARCH_PROJECTION(ROLE_UP, "mlp.up_proj", "ffn_up", 'F', 'C'),
    ARCH_PROJECTION(ROLE_DOWN, "mlp.down_proj", "ffn_down", 'C', 'F'),
    ARCH_NORM(ROLE_INPUT_NORM, "input_layernorm", "attn_norm", 'C'),
    ARCH_NORM(ROLE_POST_NORM, "post_attention_layernorm", "ffn_norm", 'C'),
    ARCH_FINAL_NORM_ROW,
    ARCH_HEAD_ROW,
};

/* Other values are of mathematics that is not here. */
static const struct arch_setting settings[] = {
    { "rope_scaling", "null", false },
    { "sliding_window", "null", false },
    { "use_sliding_window", "false", false },
    { "hidden_act", "\"silu\"", false },
    { "attention_bias", "false", false },
    { "attention_dropout", NULL, false },
    { "layer_types", "\"full_attention\"", true },
};

const struct arch arch_qwen3 = {
    .model_type = "qwen3",
    .class = "Qwen3ForCausalLM",
    .gguf = GGUF,
    .gguf_pre = "qwen2",
    .eps_key = ARCH_EPS_KEY(GGUF),
    .theta_key = ARCH_THETA_KEY(GGUF),
    .scaling_key = ARCH_SCALING_KEY(GGUF),
    .key = ARCH_KEYS(GGUF),
    .row = rows,
    .n_rows = sizeof rows / sizeof *rows,
    .setting = settings,
    .n_settings = sizeof settings / sizeof *settings,
};
