/* SPDX-License-Identifier: MIT */
/* template: chat templates, as runs of ids and text.
 *
 * Control tokens are found by their text, so that another tokenizer of the family works;
 * one that a template needs and the file lacks is an error.  Texts inside messages are
 * plain text: control tokens written in them are not recognised unless asked for.
 */
#ifndef NIBBLE_TEXT_TEMPLATE_H
#define NIBBLE_TEXT_TEMPLATE_H

#include "lib/text/tokenizer.h"

enum template_kind { TEMPLATE_QWEN3, TEMPLATE_TORCHSHARP, TEMPLATE_NONE };

/* Their names for users, NULL behind the last; the name in files. */
extern const char *const template_words[];
const char *template_name(enum template_kind k);

struct message {
    struct slice role, content;
    struct slice reasoning; // of an assistant: its thoughts, apart; p NULL: none
    bool context;           // never a target, whatever the options are
};

/* The thinking switch of the hybrid Qwen3 template.  Unset, the template is that of
 * Qwen3-Instruct-2507, which knows no thoughts. */
enum template_think { THINK_UNSET, THINK_ON, THINK_OFF };

struct template_options {
    enum template_kind kind;
    enum template_think think; // qwen3 only
    bool no_end;               // no end token (and no closing newline) after a target
    bool joint;                // prompt and target in one piece
    bool parse_special;        // added tokens inside texts are recognised
    bool all_targets;          // prompts and the template's own tokens, too
};

/* A rendered sample: ids and, for each, whether it is a target. */
struct rendered {
    struct ids ids;
    struct buf mask; // bytes 0 and 1, as many as ids
};
void rendered_free(struct rendered *r);

/* prompt and target by formats 7 and 8.2: P ‖ T ‖ E. */
int render_pair(struct encoder *e, struct rendered *out,
                const struct template_options *o, struct slice prompt,
                struct slice target, struct err *err);
/* Several messages; targets are content and end token of the assistant's that are no context.
 * qwen3 only.
 * ERR_FORMAT for a role or a form that is not supported. */
int render_messages(struct encoder *e, struct rendered *out,
                    const struct template_options *o, const struct message *m, size_t n,
                    struct err *err);
/* A document: its ids and the end-of-text token, all targets. */
int render_document(struct encoder *e, struct rendered *out,
                    const struct template_options *o, struct slice text,
                    struct err *err);
/* Cut the thoughts off what an assistant has said, as the hybrid template does: what
 * precedes the first </think>, and what follows the last one.  false: there are none. */
bool template_cut_thoughts(struct slice said, struct slice *thoughts,
                           struct slice *content);
/* A prompt to generate from: messages so far and the generation prompt. */
int render_prompt(struct encoder *e, struct ids *out, const struct template_options *o,
                  const struct message *m, size_t n, struct err *err);

#endif
