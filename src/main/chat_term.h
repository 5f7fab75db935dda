/* The terminal of a chat: a line with editing and history (libedit), and the few commands that begin with a slash. */
#ifndef LK_MAIN_CHAT_TERM_H
#define LK_MAIN_CHAT_TERM_H

#include "main/talk.h"

struct lk_term;
int lk_term_open(struct lk_term **out, struct lk_err *e);
void lk_term_close(struct lk_term *t);
/* The next message, without its newline; valid until the next call. Commands are carried out here ("" is returned then, and for
 * Ctrl-C on the line). NULL: the user leaves. A line that ends with a backslash goes on. */
const char *lk_term_line(struct lk_term *t, struct lk_talk *k, int quiet);

#endif
