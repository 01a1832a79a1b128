/* SPDX-License-Identifier: MIT */
/* learn: see learn.h. */
#include "lib/data/learn.h"

#include <strings.h>

enum kind {
    WEIGHT, // 0 or 1
    FLAG,   // true: learnt
    MASKED, // true: not learnt
    MASK,   // of tokens, or of characters
    LIKED,  // false: an answer that is not wanted
};

static const struct learn_key {
    const char *name;
    enum kind kind;
    unsigned places;
} keys[] = {
    { "weight", WEIGHT, LEARN_MESSAGE | LEARN_ROW },
    { "loss_weight", WEIGHT, LEARN_MESSAGE | LEARN_ROW },
    { "sample_weight", WEIGHT, LEARN_ROW },
    { "train", FLAG, LEARN_MESSAGE | LEARN_ROW },
    { "loss", FLAG, LEARN_MESSAGE }, // of a row it is often a measurement
    { "masked", MASKED, LEARN_MESSAGE },
    { "mask", MASK, LEARN_MESSAGE | LEARN_ROW },
    { "loss_mask", MASK, LEARN_MESSAGE | LEARN_ROW },
    { "loss_scale", MASK, LEARN_MESSAGE | LEARN_ROW },
    { "train_detail", MASK, LEARN_MESSAGE | LEARN_ROW },
    { "completion_mask", MASK, LEARN_ROW },
    { "assistant_mask", MASK, LEARN_ROW },
    { "assistant_masks", MASK, LEARN_ROW },
    { "label", LIKED, LEARN_ROW }, // a number or a text is a class
    { "kto_tag", LIKED, LEARN_ROW },
};

static bool
is_word(struct slice value, const char *word)
{
    return value.n == strlen(word) && strncasecmp(value.p, word, value.n) == 0;
}

/* 0 or 1 of a value that is a number or, for flags, a word; -1: another value. */
static int
switch_of(struct slice value, bool words)
{
    if (is_word(value, "0") || is_word(value, "0.0") ||
        (words && is_word(value, "false")))
        return 0;
    if (is_word(value, "1") || is_word(value, "1.0") ||
        (words && is_word(value, "true")))
        return 1;
    return -1;
}

static struct learn
judge(const struct learn_key *k, struct slice value)
{
    struct learn l = { .key = k->name, .only_answered = k->kind == LIKED };
    int on = switch_of(value, k->kind != WEIGHT);
    if (value.n == 0 || is_word(value, "null"))
        return l;
    switch (k->kind) {
    case LIKED:
        l.verdict = is_word(value, "false") ? LEARN_EXCLUDED : LEARN_UNCHANGED;
        break;
    case MASK:
        l.verdict = LEARN_REFUSED;
        l.wants = "null: a part of a text cannot be excluded";
        break;
    case WEIGHT:
        l.verdict = on < 0 ? LEARN_REFUSED : on ? LEARN_UNCHANGED : LEARN_EXCLUDED;
        l.wants = "0 (not learnt) or 1";
        break;
    default:
        on = on < 0 ? on : on == (k->kind == FLAG);
        l.verdict = on < 0 ? LEARN_REFUSED : on ? LEARN_INCLUDED : LEARN_EXCLUDED;
        l.wants = "true or false";
    }
    return l;
}

struct learn
learn_judge(enum learn_place place, struct slice key, struct slice value)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].places & place && slice_is(key, keys[i].name))
            return judge(&keys[i], value);
    return (struct learn){ 0 };
}
