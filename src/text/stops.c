/* Stop strings over streamed text (reply.h). Each string runs its own Knuth-Morris-Pratt automaton
 * over the bytes, so the cost is linear whatever the pieces, and what must be held back is the
 * longest state of any. The match that ends first wins, the longest among those: the answer does
 * not depend on how the text was cut. */
#include "text/reply.h"

#include "base/mem.h"

#include <string.h>

struct stop {
    char *s;
    size_t len, at; /* at: bytes matched so far */
    size_t *fail;   /* fail[k]: longest proper border of the first k bytes */
};
struct lk_stops {
    struct stop *v;
    size_t n;
    struct lk_buf held; /* seen, not yet handed out */
    int met;
};

static int stop_init(struct stop *p, const char *s)
{
    p->len = strlen(s);
    p->s = lk_strndup(s, p->len);
    p->fail = lk_calloc(p->len + 1, sizeof *p->fail);
    if (!p->s || !p->fail) return LK_ENOMEM;
    for (size_t i = 1, k = 0; i < p->len; i++) {
        while (k && s[i] != s[k]) k = p->fail[k];
        if (s[i] == s[k]) k++;
        p->fail[i + 1] = k;
    }
    return 0;
}

struct lk_stops *lk_stops_new(const char *const *stops, size_t n)
{
    struct lk_stops *s = lk_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->v = lk_calloc(n + 1, sizeof *s->v);
    s->n = s->v ? n : 0;
    for (size_t i = 0; i < n; i++) {
        if (s->v && !stop_init(&s->v[i], stops[i])) continue;
        lk_stops_free(s);
        return NULL;
    }
    if (s->v) return s;
    lk_stops_free(s);
    return NULL;
}

static void stop_step(struct stop *p, char c)
{
    if (!p->len) return; /* an empty string never stops */
    while (p->at && (p->at == p->len || p->s[p->at] != c)) p->at = p->fail[p->at];
    if (p->s[p->at] == c) p->at++;
}

int lk_stops_push(struct lk_stops *s, const char *text, size_t len, struct lk_buf *out, int *which)
{
    if (s->met) return 1;
    for (size_t i = 0; i < len; i++) {
        size_t hold = 0, hit = 0;
        for (size_t k = 0; k < s->n; k++) {
            struct stop *p = &s->v[k];
            stop_step(p, text[i]);
            if (p->at > hold) hold = p->at;
            if (!p->len || p->at != p->len || p->len <= hit) continue;
            hit = p->len;
            if (which) *which = (int)k;
        }
        lk_buf_chr(&s->held, text[i]);
        if (hit) {
            lk_buf_add(out, s->held.data, s->held.len - hit);
            lk_buf_reset(&s->held);
            s->met = 1;
            return 1;
        }
        if (hold) continue;
        lk_buf_add(out, s->held.data, s->held.len);
        lk_buf_reset(&s->held);
    }
    size_t hold = 0;
    for (size_t k = 0; k < s->n; k++)
        if (s->v[k].at > hold) hold = s->v[k].at;
    size_t safe = s->held.len - hold;
    if (safe) {
        lk_buf_add(out, s->held.data, safe);
        memmove(s->held.data, s->held.data + safe, hold + 1);
        s->held.len = hold;
    }
    return 0;
}

int lk_stops_flush(struct lk_stops *s, struct lk_buf *out)
{
    if (!s->met && s->held.len) lk_buf_add(out, s->held.data, s->held.len);
    lk_buf_reset(&s->held);
    return out->failed ? LK_ENOMEM : 0;
}

void lk_stops_free(struct lk_stops *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        lk_free(s->v[i].s);
        lk_free(s->v[i].fail);
    }
    lk_free(s->v);
    lk_buf_free(&s->held);
    lk_free(s);
}
