//! Lines at the end of a terminal that are drawn over. Nothing of the terminal is switched, so whatever ends the program
//! leaves it as it was: the cursor stands below what was drawn.

use super::{Error, Output};

/// Columns of a terminal that does not say.
const COLUMNS: usize = 100;
/// Lines of a terminal that does not say.
const LINES: usize = 30;

/// What was drawn last.
#[derive(Debug, Default)]
pub struct Screen {
    lines: usize,
}

impl Screen {
    /// Draws `frame`, whose lines must fit the terminal, in the place of what was drawn before.
    pub fn draw(&mut self, frame: &str, out: &mut Output) -> Result<(), Error> {
        out.write(self.redraw(frame))
    }

    /// What draws `frame`: in one piece, so that nobody sees half of it.
    fn redraw(&mut self, frame: &str) -> String {
        let up = if self.lines > 0 { format!("\x1b[{}F", self.lines) } else { String::new() };
        self.lines = frame.lines().count();
        // each line clears what was right of it; the rest below goes at the end
        format!("{up}{}\x1b[J", frame.replace('\n', "\x1b[K\n"))
    }
}

/// Columns and lines of the terminal that standard output is.
pub fn size() -> (usize, usize) {
    let of = |size: rustix::termios::Winsize| (usize::from(size.ws_col), usize::from(size.ws_row));
    match rustix::termios::tcgetwinsize(std::io::stdout()).map(of) {
        Ok((width, height)) if width > 0 && height > 0 => (width, height),
        _ => (COLUMNS, LINES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_takes_the_place_of_the_one_before() {
        let mut screen = Screen::default();
        assert_eq!(screen.redraw("a\nb\n"), "a\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(screen.redraw("c\n"), "\x1b[2Fc\x1b[K\n\x1b[J");
        assert_eq!(screen.redraw("d\n"), "\x1b[1Fd\x1b[K\n\x1b[J");
    }
}
