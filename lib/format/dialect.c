/* SPDX-License-Identifier: MIT */
/* dialect: see dialect.h. */
#include "lib/format/dialect.h"

#include "lib/base/json.h"
#include "lib/format/safetensors.h"
#include "lib/model/arch/arch.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_KEY "quantization_config"

/* ---- reading: what a configuration claims ---------------------------------------------- */

enum {
    MAX_PATTERNS = 65536,
    MAX_MATCHES = 1 << 22, // patterns times modules
    NVFP4_COLUMNS = 16,    // of a block
};

struct patterns {
    const char **v;
    size_t n;
};

struct claims {
    struct patterns ignore, targets;
    struct slice method, format, algo;
    bool other_blocks; // not 4 bits in blocks of 16
    size_t groups;     // of modules that are quantized alike
};

static int
add_pattern(struct store *s, struct patterns *list, struct slice text)
{
    if (list->n == MAX_PATTERNS)
        return err_set(s->err, ERR_FORMAT,
                       "%s: " CONFIG_KEY ": lists more than %d modules", s->name,
                       MAX_PATTERNS);
    if (list->n % 64 == 0) {
        const char **v = realloc(list->v, (list->n + 64) * sizeof *v);
        if (!v)
            return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
        list->v = v;
    }
    list->v[list->n] = arena_copy(&s->arena, text.p, text.n);
    if (!list->v[list->n])
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    list->n++;
    return 0;
}

static int
read_patterns(struct json *j, struct store *s, struct patterns *list)
{
    struct slice text;
    int more;
    if (json_peek(j) != '[')
        return json_skip(j, NULL);
    json_array(j);
    while ((more = json_item(j)) > 0)
        if (json_string(j, &text) < 0 || add_pattern(s, list, text) < 0)
            return -1;
    return more;
}

static int
read_string(struct json *j, struct slice *text)
{
    return json_peek(j) == '"' ? json_string(j, text) : json_skip(j, NULL);
}

/* {"num_bits": 4, "group_size": 16, ...} */
static int
read_weights(struct json *j, struct claims *c)
{
    struct slice key;
    int more;
    if (json_peek(j) != '{')
        return json_skip(j, NULL);
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        uint64_t want = slice_is(key, "num_bits")     ? 4
                        : slice_is(key, "group_size") ? NVFP4_COLUMNS
                                                      : 0;
        uint64_t found = want;
        bool number = want && json_peek(j) == '0';
        if ((number ? json_u63(j, &found) : json_skip(j, NULL)) < 0)
            return -1;
        c->other_blocks |= found != want;
    }
    return more;
}

static int
read_group_member(struct json *j, struct store *s, struct claims *c, struct slice key)
{
    if (slice_is(key, "targets"))
        return read_patterns(j, s, &c->targets);
    return slice_is(key, "weights") ? read_weights(j, c) : json_skip(j, NULL);
}

/* {"group_0": {"targets": [...], ...}, ...} */
static int
read_groups(struct json *j, struct store *s, struct claims *c)
{
    struct slice key;
    int more, inner;
    if (json_peek(j) != '{')
        return json_skip(j, NULL);
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        c->groups++;
        if (json_peek(j) != '{') {
            json_skip(j, NULL);
            continue;
        }
        json_object(j);
        while ((inner = json_key(j, &key)) > 0)
            if (read_group_member(j, s, c, key) < 0)
                return -1;
        if (inner < 0)
            return -1;
    }
    return more;
}

static int
read_claims(struct json *j, struct store *s, struct claims *c)
{
    struct slice key;
    int more;
    if (json_peek(j) != '{')
        return json_skip(j, NULL);
    json_object(j);
    while ((more = json_key(j, &key)) > 0) {
        int rc;
        if (slice_is(key, "ignore") || slice_is(key, "exclude_modules"))
            rc = read_patterns(j, s, &c->ignore);
        else if (slice_is(key, "config_groups"))
            rc = read_groups(j, s, c);
        else if (slice_is(key, "quant_method"))
            rc = read_string(j, &c->method);
        else if (slice_is(key, "format"))
            rc = read_string(j, &c->format);
        else if (slice_is(key, "quant_algo"))
            rc = read_string(j, &c->algo);
        else
            rc = json_skip(j, NULL);
        if (rc < 0)
            return -1;
    }
    return more;
}

/* 1: there are claims; 0: none; -1. */
static int
find_claims(struct store *s, struct claims *c)
{
    struct json j;
    struct slice key;
    int more, found = 0;
    if (!s->config.p)
        return 0;
    json_open(&j, s->name, 0, s->config, &s->arena, s->err);
    json_object(&j);
    while ((more = json_key(&j, &key)) > 0) {
        bool ours = slice_is(key, CONFIG_KEY) && json_peek(&j) == '{';
        if ((ours ? read_claims(&j, s, c) : json_skip(&j, NULL)) < 0)
            return -1;
        found |= ours;
    }
    return more < 0 ? -1 : found;
}

/* ---- modules ----------------------------------------------------------------------------- */

/* The regular expression re, of literals, "." and ".*" and a "$" at the end, for the
 * beginning of a path, as a glob; false: it has anything else. */
static bool
put_glob(struct buf *out, const char *re)
{
    for (; *re && strcmp(re, "$") != 0; re++) {
        bool any = re[0] == '.' && re[1] == '*';
        bool escape = re[0] == '\\' && ispunct((unsigned char)re[1]);
        if (!any && !escape && strchr("*+?()[]{}|^$\\", *re))
            return false;
        re += any || escape;
        if (any || *re == '.')
            buf_char(out, any ? '*' : escape ? '.' : '?');
        else
            buf_printf(out, "\\%c", *re);
    }
    if (!*re)
        buf_char(out, '*');
    return true;
}

/* Make globs of the expressions. */
static int
translate(struct store *s, struct patterns *list)
{
    char q[TEXT_QUOTE];
    for (size_t i = 0; i < list->n; i++) {
        const char *text = list->v[i];
        struct buf glob = { 0 };
        struct slice kept;
        if (strncmp(text, "re:", 3) != 0)
            continue;
        if (!put_glob(&glob, text + 3)) {
            buf_free(&glob);
            return err_set(s->err, ERR_FORMAT,
                           "%s: " CONFIG_KEY ": \"%s\" is not understood: expected a "
                           "name, a pattern with *, or re: with letters, . and .*",
                           s->name, text_quote(q, text, strlen(text)));
        }
        if (store_keep(s, &kept, &glob) < 0)
            return -1;
        list->v[i] = kept.p;
    }
    return 0;
}

/* Whether one is a path or a glob that fits the module, or "Linear". */
static bool
one_matches(const struct patterns *list, const char *module)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->v[i], "Linear") == 0 || fnmatch(list->v[i], module, 0) == 0)
            return true;
    return false;
}

/* Scales that only quantized activations and caches need. */
static bool
is_activation_scale(const char *name)
{
    static const char *const endings[] = { ".input_scale", ".input_global_scale",
                                           ".k_scale", ".v_scale", ".q_scale" };
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (slice_ends(slice_of(name), endings[i]))
            return true;
    return false;
}

/* A linear layer that could have been quantized: a matrix that is no embedding. */
static bool
is_linear(struct slice name, unsigned rank)
{
    return rank == 2 && slice_ends(name, ".weight") && !strstr(name.p, "embed") &&
           !strstr(name.p, "norm");
}

static int
check_module(struct store *s, const struct claims *c, const struct view *v)
{
    char q[TEXT_QUOTE];
    bool quantized = v->dtype == DT_NVFP4;
    if (!quantized && !is_linear(slice_of(v->name), v->rank))
        return 0;
    size_t n = v->name_len - (slice_ends(slice_of(v->name), ".weight") ? 7 : 0);
    char *module = arena_copy(&s->arena, v->name, n);
    if (!module)
        return err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    bool ignored = one_matches(&c->ignore, module);
    bool meant = c->targets.n == 0 || one_matches(&c->targets, module);
    text_quote(q, module, n);
    if (quantized && ignored)
        return err_set(
            s->err, ERR_FORMAT,
            "%s: module \"%s\" is quantized, but its configuration lists it as "
            "excluded from quantization",
            s->name, q);
    if (!quantized && !ignored && meant)
        return err_set(s->err, ERR_FORMAT,
                       "%s: module \"%s\" is not quantized, but its configuration does "
                       "not list it as excluded from quantization",
                       s->name, q);
    return 0;
}

/* Whether an entry belongs to a quantized module X: its name is X, a dot and more. */
static bool
beside_module(struct seen *modules, struct slice name)
{
    while (name.n && name.p[name.n - 1] != '.')
        name.n--;
    if (name.n == 0)
        return false;
    name.n--;
    return seen_has(modules, seen_hash(modules, name));
}

/* Entries beside quantized modules: scales of activations are set aside.  Without
 * claims other entries there may be anything. */
static int
check_neighbours(struct store *s, struct views *w, bool claimed)
{
    struct seen modules = { 0 };
    char q[TEXT_QUOTE];
    int rc = 0;
    for (size_t i = 0; i < w->n && rc == 0; i++) {
        struct slice name = { w->v[i].name, w->v[i].name_len };
        if (w->v[i].dtype != DT_NVFP4 || !w->v[i].dialect->foreign ||
            !slice_ends(name, ".weight"))
            continue;
        name.n -= strlen(".weight");
        if (seen_add(&modules, name) < 0)
            rc = err_set(s->err, ERR_MEMORY, "%s: out of memory", s->name);
    }
    for (size_t i = 0; i < w->n && rc == 0; i++) {
        struct view *v = &w->v[i];
        if (v->dtype == DT_NVFP4)
            continue;
        bool beside = beside_module(&modules, (struct slice){ v->name, v->name_len });
        v->aside = (claimed || beside) && is_activation_scale(v->name);
        if (claimed && beside && !v->aside)
            rc = err_set(s->err, ERR_FORMAT,
                         "%s: \"%s\" belongs to a quantized module, but its meaning "
                         "is unknown",
                         s->name, text_quote(q, v->name, v->name_len));
    }
    seen_free(&modules);
    return rc;
}

/* Activations are quantized everywhere or nowhere, where all modules are of one
 * group. */
static void
find_lacking(struct views *w)
{
    bool some = false;
    for (size_t i = 0; i < w->n; i++)
        some |= w->v[i].input != NULL;
    for (size_t i = 0; i < w->n; i++)
        w->v[i].lacks_input = some && w->v[i].dtype == DT_NVFP4 && !w->v[i].input;
}

/* NVFP4 as one of the two programs writes it, which is assumed for what is not
 * given. */
static bool
speaks_nvfp4(const struct claims *c)
{
    bool modelopt =
        slice_is(c->method, "modelopt") &&
        (!c->algo.p || slice_is(c->algo, "NVFP4") || slice_is(c->algo, "W4A16_NVFP4"));
    bool compressed = slice_is(c->method, "compressed-tensors") &&
                      (!c->format.p || slice_is(c->format, "nvfp4-pack-quantized"));
    return (modelopt || compressed) && !c->other_blocks;
}

int
dialect_views(struct views *w, struct store *s, bool copies)
{
    char q[TEXT_QUOTE];
    struct claims c = { 0 };
    int rc = find_claims(s, &c);
    bool claimed = rc > 0 && speaks_nvfp4(&c), unknown = rc > 0 && !claimed;
    if (unknown && !copies)
        rc = err_set(s->err, ERR_FORMAT,
                     "%s: its weights are quantized by \"%s\": expected NVFP4 of "
                     "modelopt or compressed-tensors, or a model that is not quantized",
                     s->name, text_quote(q, c.method.p ? c.method.p : "", c.method.n));
    s->opt.whole_pairs |= claimed;
    if (rc >= 0)
        rc = views_open(w, s, false);
    w->unknown_quantization = unknown;
    if (rc >= 0)
        rc = check_neighbours(s, w, claimed);
    if (rc == 0 && claimed && c.groups <= 1)
        find_lacking(w);
    if (rc == 0 && claimed &&
        (translate(s, &c.ignore) < 0 || translate(s, &c.targets) < 0))
        rc = -1;
    if (rc == 0 && claimed && w->n > MAX_MATCHES / (c.ignore.n + c.targets.n + 1))
        rc = err_set(s->err, ERR_FORMAT,
                     "%s: " CONFIG_KEY ": %zu patterns for %zu tensors", s->name,
                     c.ignore.n + c.targets.n, w->n);
    for (size_t i = 0; claimed && i < w->n && rc == 0; i++)
        if (!w->v[i].aside)
            rc = check_module(s, &c, &w->v[i]);
    free(c.ignore.v);
    free(c.targets.v);
    return rc < 0 ? -1 : 0;
}

/* ---- writing ------------------------------------------------------------------------------ */

#define PRODUCER "{\"name\":\"modelopt\",\"version\":\"nibble %s\"}"

static bool
is_modelopt(const struct writer *w)
{
    return w->kind == &container_modelopt;
}

/* What the configuration records of the tensors. */
struct summary {
    struct buf ignored; // JSON: the linear modules that are plain
    bool w4a4;          // there are activation scales
};

static void
ignore_module(struct summary *s, struct slice module)
{
    buf_str(&s->ignored, s->ignored.len ? ", " : "[");
    json_put(&s->ignored, module);
}

/* A tied model has no head tensor, but a module of that name, which is not
 * quantized. */
static void
summarize(struct summary *s, const struct writer *w)
{
    bool head = false; // quantized
    *s = (struct summary){ 0 };
    for (size_t i = 0; i < w->n; i++) {
        struct slice name = slice_of(w->t[i].name);
        head |= slice_starts(name, ARCH_HEAD ARCH_WEIGHT) && w->t[i].dtype == DT_U8;
        s->w4a4 |=
            slice_ends(name, ".input_scale") || slice_ends(name, ".input_global_scale");
    }
    if (!head)
        ignore_module(s, slice_of(ARCH_HEAD));
    if (is_modelopt(w)) // it lists every plain module that it looked at
        ignore_module(s, slice_of(ARCH_EMBED));
    for (size_t i = 0; i < w->n; i++) {
        const struct wtensor *t = &w->t[i];
        struct slice name = slice_of(t->name);
        if (t->dtype != DT_U8 && is_linear(name, t->rank) &&
            !slice_starts(name, ARCH_HEAD "."))
            ignore_module(s, (struct slice){ name.p, name.n - strlen(".weight") });
    }
    buf_str(&s->ignored, s->ignored.len ? "]" : "[]");
}

static const char *
modelopt_algo(const struct summary *s)
{
    return s->w4a4 ? "NVFP4" : "W4A16_NVFP4";
}

static void
put_modelopt(struct buf *out, const struct summary *s, const char *version)
{
    static const char args[] = "{\"dynamic\": false, \"num_bits\": 4, \"type\": "
                               "\"float\", \"group_size\": 16}";
    buf_printf(out,
               "{\n    \"quant_method\": \"modelopt\",\n    \"quant_algo\": \"%s\",\n"
               "    \"ignore\": %s,\n    \"producer\": " PRODUCER ",\n"
               "    \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"],\n"
               "      \"weights\": %s",
               modelopt_algo(s), s->ignored.data, version, args);
    if (s->w4a4)
        buf_printf(out, ",\n      \"input_activations\": %s", args);
    buf_str(out, "}}\n  }");
}

static void
put_modelopt_file(struct buf *out, const struct summary *s, const char *version)
{
    buf_printf(out,
               "{\n  \"producer\": " PRODUCER ",\n  \"quantization\": {\n"
               "    \"quant_algo\": \"%s\",\n    \"kv_cache_quant_algo\": null,\n"
               "    \"group_size\": 16,\n    \"exclude_modules\": %s\n  }\n}\n",
               version, modelopt_algo(s), s->ignored.data);
}

/* As compressed-tensors serializes it: older releases need the version that has
 * scale_dtype, and read the members that are null or empty. */
static void
put_compressed(struct buf *out, const struct summary *s)
{
    static const char args[] =
        "\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"tensor_group\", "
        "\"group_size\": 16,\n"
        "        \"symmetric\": true, \"scale_dtype\": \"torch.float8_e4m3fn\",\n"
        "        \"dynamic\": ";
    buf_printf(
        out,
        "{\n    \"quant_method\": \"compressed-tensors\",\n"
        "    \"version\": \"0.13.0\",\n"
        "    \"format\": \"nvfp4-pack-quantized\",\n"
        "    \"quantization_status\": \"compressed\",\n"
        "    \"global_compression_ratio\": null, \"kv_cache_scheme\": null,\n"
        "    \"sparsity_config\": {}, \"transform_config\": {},\n"
        "    \"ignore\": %s,\n"
        "    \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"],\n"
        "      \"format\": \"nvfp4-pack-quantized\", \"output_activations\": null,\n"
        "      \"weights\": {%sfalse, \"observer\": \"minmax\"},\n"
        "      \"input_activations\": ",
        s->ignored.data, args);
    if (s->w4a4)
        buf_printf(out, "{%s\"local\", \"observer\": \"static_minmax\"}", args);
    else
        buf_str(out, "null");
    buf_str(out, "}}\n  }");
}

static int
put_config(struct buf *out, struct slice config, const struct writer *w,
           const struct summary *s, struct err *err)
{
    struct arena arena = { 0 };
    struct json j;
    struct slice key, value;
    int members = 0;
    json_open(&j, "config", 0, config, &arena, err);
    json_object(&j);
    buf_char(out, '{');
    while (json_key(&j, &key) > 0) {
        if (json_skip(&j, &value) < 0)
            break;
        if (slice_is(key, CONFIG_KEY))
            continue;
        buf_str(out, members++ ? ",\n  " : "\n  ");
        json_put(out, key);
        buf_str(out, ": ");
        buf_add(out, value.p, value.n);
    }
    if (s) {
        buf_str(out,
                members ? ",\n  \"" CONFIG_KEY "\": " : "\n  \"" CONFIG_KEY "\": ");
        if (is_modelopt(w))
            put_modelopt(out, s, w->meta.version);
        else
            put_compressed(out, s);
    }
    buf_str(out, "\n}\n");
    arena_free(&arena);
    return err->kind ? -1 : buf_ok(out, err);
}

int
dialect_plain_config(struct buf *out, struct slice config, struct err *err)
{
    return put_config(out, config, NULL, NULL, err);
}

/* A directory of safetensors whose configuration names the dialect. */
static int
finish_sums(struct writer *w)
{
    struct slice plain = w->meta.config;
    struct buf text = { 0 };
    struct summary s;
    summarize(&s, w);
    int rc = buf_ok(&s.ignored, w->err);
    if (rc == 0 && is_modelopt(w)) {
        put_modelopt_file(&text, &s, w->meta.version);
        rc = buf_ok(&text, w->err);
        if (rc == 0)
            rc = writer_extra(w, "hf_quant_config.json", text.data, text.len);
    }
    text.len = 0;
    if (rc == 0)
        rc = put_config(&text, plain, w, &s, w->err);
    if (rc == 0) { // last, as it lists what else is there
        w->meta.config = (struct slice){ text.data, text.len };
        rc = safetensors_finish(w);
        w->meta.config = plain;
    }
    buf_free(&text);
    buf_free(&s.ignored);
    return rc;
}

const struct container container_modelopt = {
    .name = "modelopt",
    .traits = { .to_directory = true,
                .directory_only = true,
                .needs_model = true,
                .keeps_metadata = true,
                .dialect = "modelopt" },
    .plan = safetensors_plan,
    .finish = finish_sums,
};

const struct container container_compressed = {
    .name = "compressed-tensors",
    .traits = { .to_directory = true,
                .directory_only = true,
                .needs_model = true,
                .keeps_metadata = true,
                .dialect = "compressed-tensors" },
    .plan = safetensors_plan,
    .finish = finish_sums,
};
