/* Which path is which endpoint, who may call it, and what the rest of the world gets: 401, 404, 405, OPTIONS. */
#include "serve/front.h"

#include "serve/assets.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>

enum { GET_IT = 2, DELETE_IT = 4, POST_IT = 8, OPEN = 16, ANTHROPIC = 32 };

typedef void (*plain_fn)(struct lk_front *, struct lk_hx *);
typedef void (*id_fn)(struct lk_front *, struct lk_hx *, const char *id);

static void model_list(struct lk_front *f, struct lk_hx *x) { lk_api_models(f, x, NULL); }

static void page(struct lk_front *f, struct lk_hx *x)
{
    lk_hx_header(x, "Cache-Control", "no-cache");
    lk_hx_header(x, "Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                                               "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'");
    lk_hx_reply(x, 200, "text/html; charset=utf-8", lk_page_html, lk_page_html_size);
}

static void openapi(struct lk_front *f, struct lk_hx *x)
{
    lk_hx_reply(x, 200, "application/json", lk_openapi_json, lk_openapi_json_size);
}

static const struct route {
    const char *path; /* a trailing * is one segment, given as id */
    int what;
    plain_fn plain;
    id_fn with_id;
} routes[] = {
    {"/", GET_IT | OPEN, page, NULL},
    {"/health", GET_IT | OPEN, lk_api_health, NULL},
    {"/version", GET_IT, lk_api_version, NULL},
    {"/openapi.json", GET_IT, openapi, NULL},
    {"/metrics", GET_IT, lk_api_metrics, NULL},
    {"/slots", GET_IT, lk_api_slots, NULL},
    {"/tokenize", POST_IT, lk_api_tokenize, NULL},
    {"/detokenize", POST_IT, lk_api_detokenize, NULL},
    {"/v1/models", GET_IT, model_list, NULL},
    {"/v1/models/*", GET_IT, NULL, lk_api_models},
    {"/v1/chat/completions", POST_IT, lk_api_chat, NULL},
    {"/v1/completions", POST_IT, lk_api_completions, NULL},
    {"/v1/messages", POST_IT | ANTHROPIC, lk_api_messages, NULL},
    {"/v1/messages/count_tokens", POST_IT | ANTHROPIC, lk_api_count_tokens, NULL},
    {"/v1/responses", POST_IT, lk_api_responses, NULL},
    {"/v1/responses/input_tokens", POST_IT, lk_api_responses_tokens, NULL},
    {"/v1/responses/*", GET_IT, NULL, lk_api_responses_get},
    {"/v1/responses/*", DELETE_IT, NULL, lk_api_responses_delete},
    {"/v1/responses/*/input_items", GET_IT, NULL, lk_api_responses_items},
};

void lk_front_count(struct lk_front *f, const char *route, int status)
{
    int i = 0;
    while (i < f->n_counts && (f->counts[i].route != route || f->counts[i].status != status)) i++;
    if (i == (int)(sizeof f->counts / sizeof *f->counts)) return;
    if (i == f->n_counts) f->counts[f->n_counts++] = (struct lk_count){route, status, 0};
    f->counts[i].n++;
}

/* Same time whatever differs, and for every key: digests of equal length are compared whole. */
static int key_ok(const struct lk_front *f, const struct lk_hx *x)
{
    const char *auth = lk_hx_in(x, "Authorization"), *key = lk_hx_in(x, "X-Api-Key");
    unsigned char given[SHA256_DIGEST_LENGTH], want[SHA256_DIGEST_LENGTH];
    int ok = 0;
    if (!f->s->n_keys) return 1;
    if (auth && !strncasecmp(auth, "Bearer ", 7)) key = auth + 7;
    if (!key) return 0;
    SHA256((const unsigned char *)key, strlen(key), given);
    for (int i = 0; i < f->s->n_keys; i++) {
        SHA256((const unsigned char *)f->s->keys[i], strlen(f->s->keys[i]), want);
        ok |= !CRYPTO_memcmp(given, want, sizeof want);
    }
    return ok;
}

/* 1: the path is the route's; id gets the segment at '*'. */
static int path_is(const char *route, const char *path, char *id, size_t cap)
{
    const char *star = strchr(route, '*');
    if (!star) return !strcmp(route, path);
    size_t head = (size_t)(star - route), tail = strlen(star + 1);
    if (strncmp(route, path, head)) return 0;
    size_t n = strcspn(path + head, "/");
    if (!n || n >= cap || strlen(path + head) != n + tail || strcmp(path + head + n, star + 1)) return 0;
    memcpy(id, path + head, n);
    id[n] = 0;
    return 1;
}

static int method_bit(enum evhttp_cmd_type m)
{
    return m == EVHTTP_REQ_GET || m == EVHTTP_REQ_HEAD ? GET_IT : m == EVHTTP_REQ_POST ? POST_IT : m == EVHTTP_REQ_DELETE ? DELETE_IT : 0;
}

static void not_here(struct lk_hx *x, int allowed, int options)
{
    struct lk_fault fault = {0};
    char allow[64];
    snprintf(allow, sizeof allow, "%s%s%sOPTIONS", allowed & GET_IT ? "GET, HEAD, " : "", allowed & POST_IT ? "POST, " : "",
             allowed & DELETE_IT ? "DELETE, " : "");
    if (!allowed) {
        lk_fault_set(&fault, 404, "not_found", NULL, "there is nothing at %.200s", lk_hx_path(x));
        lk_hx_error(x, &fault);
        return;
    }
    lk_hx_header(x, "Allow", allow);
    if (options) {
        lk_hx_reply(x, 204, NULL, NULL, 0);
        return;
    }
    lk_fault_set(&fault, 405, "method_not_allowed", NULL, "%.200s takes %s", lk_hx_path(x), allow);
    lk_hx_error(x, &fault);
}

void lk_front_handle(struct lk_front *f, struct lk_hx *x)
{
    enum evhttp_cmd_type m = lk_hx_method(x);
    const char *path = lk_hx_path(x);
    const struct route *r = NULL;
    struct lk_fault fault = {0};
    char id[128] = "";
    int allowed = 0;
    if (f->draining) lk_hx_header(x, "Connection", "close");
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!path_is(routes[i].path, path, id, sizeof id)) continue;
        /* a longer fixed path wins over '*': "input_tokens" is no response's id */
        if (strchr(routes[i].path, '*') && allowed && !strcmp(path, "/v1/responses/input_tokens")) continue;
        allowed |= routes[i].what & (GET_IT | POST_IT | DELETE_IT);
        if (routes[i].what & ANTHROPIC) lk_hx_anthropic(x);
        if (routes[i].what & method_bit(m)) r = &routes[i];
        if (r) break;
    }
    if (!r) {
        not_here(x, allowed, m == EVHTTP_REQ_OPTIONS);
        return;
    }
    lk_hx_route(x, r->path);
    if (!(r->what & OPEN) && !key_ok(f, x)) {
        lk_fault_set(&fault, 401, "invalid_api_key", NULL, "the API key is missing or wrong; send Authorization: Bearer KEY");
        lk_hx_error(x, &fault);
        return;
    }
    if (r->plain)
        r->plain(f, x);
    else
        r->with_id(f, x, id);
}
