//! Completions and man pages, from the same table as the command line itself.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::failure::{Failure, Outcome, say};
use crate::flags::Flags;

/// Prints completions for `shell`.
pub fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Flags::command(), "forebay", &mut script);
    say(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a man page for each command into `folder`, which is made where missing.
pub fn man(folder: &Path) -> Outcome {
    let failed = |error| Failure::because(format!("writing man pages into {}", folder.display()), &error);
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Flags::command(), folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_man_page() {
        let folder = std::env::temp_dir().join(format!("forebay-man-{}", std::process::id()));
        assert_eq!(man(&folder), Ok(ExitCode::SUCCESS));
        for page in ["forebay.1", "forebay-serve.1", "forebay-cache-check.1"] {
            let text = std::fs::read_to_string(folder.join(page)).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{page}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_shell_has_completions() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Flags::command(), "forebay", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("drain"), "{shell}");
        }
    }
}
