-- R11.
return { 'now', as_text(now) }
