/* How an error travels: a function that can fail returns 0 or a negative enum lk_code and fills
 * `struct lk_err` once, where the fault was seen. Callers pass it up unchanged or add a place in
 * front. Only src/main turns a code into an exit status (lk_err_exit). */
#ifndef LK_BASE_ERR_H
#define LK_BASE_ERR_H

enum lk_code {
    LK_OK = 0,
    LK_EINPUT = -1,  /* a file's or flag value's fault: exit 1 */
    LK_EUSAGE = -2,  /* wrong command line: exit 2 */
    LK_EDEVICE = -3, /* a device died or lied; the rank must end: exit 70 */
    LK_ENOMEM = -4,  /* host or device memory ran out; the object that asked is unchanged */
    LK_EREQUEST = -5,  /* one request's fault (too long, bad value); goes to that client */
    LK_EBUSY = -6,   /* no room now (queue or KV pages); try again later */
    LK_ECANCEL = -7, /* cancelled by its owner */
    LK_ESYS = -8,    /* the operating system refused (file, socket, thread) */
};

struct lk_err {
    int code;
    char text[768]; /* what, where, what to do; one line, no trailing newline */
};

/* Fills e (may be NULL) and returns code. The first error wins: a filled e is kept. */
int lk_fail(struct lk_err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " in front of the text of a filled e; returns e->code (LK_EINPUT when e is NULL). */
int lk_err_prefix(struct lk_err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void lk_err_clear(struct lk_err *e);
/* Exit status for a code: 0, 1, 2 or 70. */
int lk_err_exit(int code);

#endif
