/* SPDX-License-Identifier: MIT */
/* nfc: Unicode normalisation form C, as the tokenizer's reference does it. */
#ifndef NIBBLE_TEXT_NFC_H
#define NIBBLE_TEXT_NFC_H

#include "lib/base/buf.h"
#include "lib/base/text.h"

#include <stdbool.h>
#include <stddef.h>

/* True if the text is normal for certain: it holds nothing that normalisation could
 * change.  False: nfc_add must decide.  pre: valid UTF-8. */
bool nfc_plain(struct slice text);
/* Append the normal form of a text.  pre: valid UTF-8.  Linear time for any text.
 * A failed allocation marks out. */
void nfc_add(struct buf *out, struct slice text);

#endif
