/* SPDX-License-Identifier: MIT */
/* learn: the keys by which training data of other programs exclude text from what is learnt:
 * OpenAI's weight, axolotl's train, loss of ms-swift and xtuner, masked of torchtune, label of
 * data for KTO, and masks of many names.  None of them may be ignored. */
#ifndef NIBBLE_DATA_LEARN_H
#define NIBBLE_DATA_LEARN_H

#include "lib/base/text.h"

#include <stdbool.h>

enum learn_place { LEARN_MESSAGE = 1, LEARN_ROW = 2 };

struct learn {
    enum {
        LEARN_UNCHANGED, // another key, or a value that changes nothing
        LEARN_INCLUDED,  // the value asks explicitly that the text is learnt
        LEARN_EXCLUDED,
        LEARN_REFUSED, // the value asks for what nibble cannot do
    } verdict;
    const char *key;
    const char *wants;  // the expected value, if the verdict is LEARN_REFUSED
    bool only_answered; // the key means this only in a row with an answer
};

/* Judge what a key in a message or in a row asks for.  value: JSON as it is written, or a cell of a
 * table, in which words may be in capitals and an empty value counts as null. */
struct learn learn_judge(enum learn_place place, struct slice key, struct slice value);

#endif
