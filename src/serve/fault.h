/* What is wrong with a request, said once where it was seen: HTTP status, a code for programs, the field, one line for
 * people. api files turn it into their protocol's error shape. Also the small readers that check one JSON field each. */
#ifndef LK_SERVE_FAULT_H
#define LK_SERVE_FAULT_H

#include "base/err.h"

#include <jansson.h>

struct lk_fault {
    int status; /* 0: no fault */
    char code[48], param[192], text[512];
    int retry_after; /* seconds; 0: no header */
};

/* Fills f and returns -1. The first fault wins. param may be NULL. */
int lk_fault_set(struct lk_fault *f, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* 400 invalid_value about a field */
int lk_fault_field(struct lk_fault *f, const char *param, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* From an error of a lower stage: LK_EREQUEST 400, LK_EBUSY 503, the rest 500. */
int lk_fault_err(struct lk_fault *f, const struct lk_err *e);

/* The error object of a fault, in OpenAI's or Anthropic's shape. */
json_t *lk_fault_json(const struct lk_fault *f, int anthropic);

/* Readers of one field of an object. Absent and null leave *out as it is and return 0; present returns 1; a wrong type or
 * range fills f and returns -1. */
int lk_get_num(const json_t *o, const char *name, double min, double max, double *out, struct lk_fault *f);
int lk_get_int(const json_t *o, const char *name, json_int_t min, json_int_t max, json_int_t *out, struct lk_fault *f);
int lk_get_bool(const json_t *o, const char *name, int *out, struct lk_fault *f);
int lk_get_str(const json_t *o, const char *name, const char **out, struct lk_fault *f);
int lk_get_obj(const json_t *o, const char *name, const json_t **out, struct lk_fault *f);
int lk_get_arr(const json_t *o, const char *name, const json_t **out, struct lk_fault *f);

/* The body of a request as an object, or 400. NULL when f was filled. */
json_t *lk_body_parse(const char *body, size_t n, struct lk_fault *f);

#endif
