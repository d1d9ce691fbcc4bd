//! `local`: hands over to [`crate::local`].

use super::arguments::LocalArguments;
use super::evaluate::check;
use super::{Error, Exit};

pub(super) fn run(arguments: &LocalArguments) -> Result<Exit, Error> {
    check(arguments.files())?;
    Err(Error::new("the pipeline is not part of this build", ""))
}
