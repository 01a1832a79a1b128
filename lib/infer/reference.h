/* SPDX-License-Identifier: MIT */
/* reference: the model that another one is compared with on the same tokens. */
#ifndef NIBBLE_INFER_REFERENCE_H
#define NIBBLE_INFER_REFERENCE_H

#include "lib/infer/session.h"

struct reference {
    struct session *s;
    struct model model; // on the device of s, whose model has it as its teacher
    struct net_cache cache;
};
/* Call reference_close in any case, before s is closed. */
int reference_open(struct reference *r, struct session *s);
/* Memory for documents of n tokens. */
int reference_reserve(struct reference *r, size_t n);
void reference_close(struct reference *r);

#endif
