//! What came of a run.

use std::fmt;
use std::panic::Location;

use super::Case;

/// What a case expected and what came instead.
#[derive(Debug, Clone)]
pub struct Failure {
    what: String,
    expected: String,
    found: String,
    at: &'static Location<'static>,
}

impl Failure {
    #[track_caller]
    pub(super) fn new(
        what: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self {
            what: what.into(),
            expected: expected.into(),
            found: found.into(),
            at: Location::caller(),
        }
    }

    /// What was looked at.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What should have come.
    pub fn expected(&self) -> &str {
        &self.expected
    }

    /// What came.
    pub fn found(&self) -> &str {
        &self.found
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        writeln!(f, "      expected: {}", self.expected)?;
        writeln!(f, "      found:    {}", self.found)?;
        write!(f, "      checked at {}:{}", self.at.file(), self.at.line())
    }
}

/// What came of a case.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The backend does what the rule says.
    Passed,
    /// The case was not run, for the reason given: it says nothing about the
    /// backend.
    Skipped(String),
    /// The backend does something else.
    Failed(Failure),
}

/// A case and what came of it.
#[derive(Debug, Clone)]
pub struct CaseReport {
    name: String,
    rules: Vec<u8>,
    about: String,
    outcome: Outcome,
}

impl CaseReport {
    pub(super) fn new(case: &Case, outcome: Outcome) -> Self {
        Self {
            name: case.name().to_owned(),
            rules: case.rules().to_vec(),
            about: case.about().to_owned(),
            outcome,
        }
    }

    /// The case's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of the rules that it is about.
    pub fn rules(&self) -> &[u8] {
        &self.rules
    }

    /// What came of it.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.rules.iter().map(|rule| format!("R{rule}")).collect();
        let rules = rules.join(" ");
        match &self.outcome {
            Outcome::Passed => write!(f, "passed   {} ({rules})", self.name),
            Outcome::Skipped(reason) => {
                write!(f, "skipped  {} ({rules}): {reason}", self.name)
            }
            Outcome::Failed(failure) => write!(
                f,
                "FAILED   {} ({rules})\n      {}\n      {failure}",
                self.name, self.about
            ),
        }
    }
}

/// What came of a run, case by case. Displays as a list with the failures last.
#[derive(Debug, Clone)]
#[must_use]
pub struct Report {
    cases: Vec<CaseReport>,
}

impl Report {
    pub(super) fn new(cases: Vec<CaseReport>) -> Self {
        Self { cases }
    }

    /// Every case that was run or skipped, in order.
    pub fn cases(&self) -> &[CaseReport] {
        &self.cases
    }

    /// The cases that passed.
    pub fn passed(&self) -> impl Iterator<Item = &CaseReport> {
        self.with(|outcome| matches!(outcome, Outcome::Passed))
    }

    /// The cases that were not run, each with its reason.
    pub fn skipped(&self) -> impl Iterator<Item = &CaseReport> {
        self.with(|outcome| matches!(outcome, Outcome::Skipped(_)))
    }

    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &CaseReport> {
        self.with(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    fn with(&self, is: impl Fn(&Outcome) -> bool) -> impl Iterator<Item = &CaseReport> {
        self.cases.iter().filter(move |case| is(&case.outcome))
    }

    /// For a test: does nothing when no case failed.
    ///
    /// # Panics
    /// When a case failed, with the whole report.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(
            self.failed().next().is_none(),
            "the backend does not conform\n{self}"
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in self.passed().chain(self.skipped()).chain(self.failed()) {
            writeln!(f, "{case}")?;
        }
        write!(
            f,
            "{} passed, {} skipped, {} failed",
            self.passed().count(),
            self.skipped().count(),
            self.failed().count()
        )
    }
}
