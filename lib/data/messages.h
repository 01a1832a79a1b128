/* SPDX-License-Identifier: MIT */
/* messages: conversations in JSON, as data sets, requests and transcripts have them. */
#ifndef NIBBLE_DATA_MESSAGES_H
#define NIBBLE_DATA_MESSAGES_H

#include "lib/base/json.h"
#include "lib/text/template.h"

/* Texts are borrowed from the JSON or live in its arena. */
struct messages {
    struct message *v;
    size_t n, cap;
};

/* The names that the keys of a message, and its roles, have in a dialect. */
struct message_keys {
    const char *role, *content;
    const char *const (*roles)[2]; // name there, name here; NULL: no others
    bool training; // keys that exclude a message from what is learnt count
};
/* Requests and transcripts; training data; training data of ShareGPT. */
extern const struct message_keys messages_openai, messages_training, messages_sharegpt;

/* Append the messages of an array: objects with role and content, a text or an array of parts
 * that are texts, and with reasoning_content of an assistant's.  Tool calls are refused.  In
 * training data the keys of learn.h set message.context or are refused.  Other keys are
 * ignored. */
int messages_parse(struct messages *m, struct json *j, const struct message_keys *k);
int messages_prepend(struct messages *m, struct message first, struct err *err);
void messages_free(struct messages *m);

/* Tool calls and declarations have no template yet: the value of that key may be null or []. */
int messages_refuse_tools(struct json *j, const char *key);

#endif
