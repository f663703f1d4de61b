//! The command line, as its users see it: processes, output, exit statuses.

#[cfg(test)]
#[path = "cli"]
mod cli {
    mod copy;
    mod demo;
    mod help;
    mod input;
    mod output;
    mod run;
    mod status;
    mod support;
}
